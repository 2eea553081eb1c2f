package datastore

import (
	"context"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/clusterd/clusterd/internal/datastore/engine"
)

// withRequests lets the engine know the request of each watch that kine's bridge opens, which the bridge keeps to itself.
func withRequests(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	return handle(service, &requestStream{ServerStream: stream})
}

// requestStream is a stream whose context has the last request to open a watch: the bridge takes the context between two
// messages, for the watch of the first.
type requestStream struct {
	grpc.ServerStream
	last *etcdserverpb.WatchCreateRequest
}

func (s *requestStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if r, ok := m.(*etcdserverpb.WatchRequest); ok {
		s.last = r.GetCreateRequest()
	}
	return err
}

func (s *requestStream) Context() context.Context {
	if s.last == nil {
		return s.ServerStream.Context()
	}
	return engine.WithRequest(s.ServerStream.Context(), s.last)
}
