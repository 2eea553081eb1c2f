package runtime

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// survive makes a panic in one call an error of that call: the whole cluster lives in this process.
func survive(log *slog.Logger) (grpc.UnaryServerInterceptor, grpc.StreamServerInterceptor) {
	caught := func(method string, err *error) {
		if v := recover(); v != nil {
			log.Warn("containerd panicked", "method", method, "panic", v)
			log.Debug("stack of the panic", "stack", string(debug.Stack()))
			*err = status.Error(codes.Internal, fmt.Sprintf("%s panicked: %v", method, v))
		}
	}
	unary := func(ctx context.Context, req any, i *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
		defer caught(i.FullMethod, &err)
		return next(ctx, req)
	}
	stream := func(srv any, s grpc.ServerStream, i *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
		defer caught(i.FullMethod, &err)
		return next(srv, s)
	}
	return unary, stream
}
