package datastore

import (
	"context"
	"runtime"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/clusterd/clusterd/internal/datastore/engine"
)

// waitingResponses is how many messages to the watches of a stream may wait to be sent.
const waitingResponses = 128

// withWatches serves streams of watches by a watchStream.
func withWatches(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if info.FullMethod != etcdserverpb.Watch_Watch_FullMethodName {
		return handle(service, stream)
	}
	s := &watchStream{ServerStream: stream, responses: make(chan any, waitingResponses), ended: make(chan struct{})}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		s.sendAll()
	}()
	err := handle(service, s)
	close(s.ended)
	<-sent
	return err
}

// watchStream is a stream whose context has the last request to open a watch: the bridge takes the context between two
// messages, for the watch of the first.
type watchStream struct {
	grpc.ServerStream
	last      *etcdserverpb.WatchCreateRequest
	responses chan any
	ended     chan struct{}
}

func (s *watchStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if r, ok := m.(*etcdserverpb.WatchRequest); ok {
		s.last = r.GetCreateRequest()
	}
	return err
}

func (s *watchStream) Context() context.Context {
	if s.last == nil {
		return s.ServerStream.Context()
	}
	return engine.WithRequest(s.ServerStream.Context(), s.last)
}

func (s *watchStream) SendMsg(m any) error {
	select {
	case s.responses <- m:
		return nil
	case <-s.ended:
		return context.Canceled
	case <-s.ServerStream.Context().Done():
		return s.ServerStream.Context().Err()
	}
}

// sendAll sends together what the watches have to say of a transaction: each of them is a goroutine of the bridge.
func (s *watchStream) sendAll() {
	for {
		select {
		case m := <-s.responses:
			runtime.Gosched()
			for more := true; more; {
				if err := s.ServerStream.SendMsg(m); err != nil {
					return
				}
				select {
				case m = <-s.responses:
				default:
					more = false
				}
			}
		case <-s.ended:
			return
		}
	}
}
