package runtime

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestErrorOfPullCanBeEncoded has what two unreachable mirrors give, which containerd cannot encode as it is.
func TestErrorOfPullCanBeEncoded(t *testing.T) {
	unresolved := &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "mirror.invalid"}}
	err := opaque{errors.Join(errdefs.ErrNotFound, &url.Error{Op: "Head", URL: "https://mirror.invalid", Err: unresolved})}
	if got := errgrpc.ToGRPC(err); status.Code(got) != codes.NotFound || !strings.Contains(got.Error(), "no such host") {
		t.Errorf("encoded: %v", got)
	}
	var dns *net.DNSError
	if !errors.As(err, &dns) {
		t.Error("the cause is lost")
	}
}

func TestPanicOfOneCallIsItsError(t *testing.T) {
	var log strings.Builder
	unary, stream := survive(slog.New(slog.NewTextHandler(&log, nil)))
	_, err := unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/runtime.v1.ImageService/PullImage"},
		func(context.Context, any) (any, error) { panic("broken") })
	if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "PullImage panicked: broken") {
		t.Errorf("unary call: %v", err)
	}
	err = stream(nil, nil, &grpc.StreamServerInfo{FullMethod: "/x"}, func(any, grpc.ServerStream) error { panic("broken") })
	if status.Code(err) != codes.Internal {
		t.Errorf("stream: %v", err)
	}
	if strings.Count(log.String(), "level=WARN") != 2 {
		t.Errorf("log: %s", log.String())
	}
	answer, err := unary(t.Context(), 1, &grpc.UnaryServerInfo{}, func(_ context.Context, r any) (any, error) { return r, nil })
	if answer != 1 || err != nil {
		t.Errorf("a sound call gives %v, %v", answer, err)
	}
}
