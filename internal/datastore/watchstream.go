package datastore

import (
	"context"
	"runtime"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	"github.com/clusterd/clusterd/internal/datastore/engine"
)

// waitingResponses and waitingBytes are how many messages to the watches of a stream, and of what size of values, may wait to
// be sent. A larger one waits alone.
const (
	waitingResponses = 128
	waitingBytes     = 1 << 20
)

// withWatches serves streams of watches by a watchStream.
func withWatches(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if info.FullMethod != etcdserverpb.Watch_Watch_FullMethodName {
		return handle(service, stream)
	}
	s := &watchStream{
		ServerStream: stream, responses: make(chan response, waitingResponses),
		room: semaphore.NewWeighted(waitingBytes), ended: make(chan struct{}),
	}
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
	responses chan response
	room      *semaphore.Weighted // in bytes
	ended     chan struct{}
}

// response is a message and what it takes of the room.
type response struct {
	message any
	bytes   int64
}

// newResponse counts the values alone, of which all large messages are made.
func newResponse(m any) response {
	r := response{message: m}
	if w, ok := m.(*etcdserverpb.WatchResponse); ok {
		for _, event := range w.Events {
			r.bytes += int64(len(event.GetKv().GetValue()) + len(event.GetPrevKv().GetValue()))
		}
	}
	r.bytes = min(r.bytes, waitingBytes)
	return r
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
	ctx, r := s.ServerStream.Context(), newResponse(m)
	if err := s.room.Acquire(ctx, r.bytes); err != nil {
		return err
	}
	select {
	case s.responses <- r:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sendAll sends together what the watches have to say of a transaction: each of them is a goroutine of the bridge.
func (s *watchStream) sendAll() {
	for {
		select {
		case r := <-s.responses:
			runtime.Gosched()
			if !s.send(r) || !s.sendWaiting() {
				return
			}
		case <-s.ended:
			s.sendWaiting()
			return
		}
	}
}

// sendWaiting sends what waits, and returns false when the stream is broken, and its context ended with it.
func (s *watchStream) sendWaiting() bool {
	for {
		select {
		case r := <-s.responses:
			if !s.send(r) {
				return false
			}
		default:
			return true
		}
	}
}

func (s *watchStream) send(r response) bool {
	err := s.ServerStream.SendMsg(r.message)
	s.room.Release(r.bytes)
	return err == nil
}
