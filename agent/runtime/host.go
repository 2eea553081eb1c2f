package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/clusterd/clusterd/agent/runtime/registries"
)

// namespace is where CRI keeps its containers and images.
const namespace = "k8s.io"

// graceful is how long calls in progress may go on when the API closes. Streams
// of events never end by themselves, and an exec may take for ever.
const graceful = time.Second

// host is what this package's plugins have to do with the Runtime they belong
// to. containerd makes plugins from a process-wide registry; they find their host
// in the context that containerd was started with.
type host struct {
	registries *registries.File
	log        *slog.Logger
	failed     chan error    // gets the first reason why containerd gave up
	imported   chan struct{} // closed when no more archives are being imported

	// Set by the API plugin while containerd starts.
	client *client.Client
	images imageStatus
}

// imageStatus is the part of CRI's image service that is called directly.
type imageStatus interface {
	ImageStatus(context.Context, *criapi.ImageStatusRequest) (*criapi.ImageStatusResponse, error)
}

func newHost(file *registries.File, log *slog.Logger) *host {
	return &host{registries: file, log: log, failed: make(chan error, 1), imported: make(chan struct{})}
}

type hostKey struct{}

func hostFrom(ctx context.Context) (*host, error) {
	h, ok := ctx.Value(hostKey{}).(*host)
	if !ok {
		return nil, errors.New("containerd was not started by this package")
	}
	return h, nil
}

// fail ends the runtime with err, unless something else did already.
func (h *host) fail(err error) {
	select {
	case h.failed <- err:
	default:
	}
}

// imageID returns the ID of an image as CRI knows it, or "".
func (h *host) imageID(ctx context.Context, name string) (string, error) {
	status, err := h.images.ImageStatus(namespaces.WithNamespace(ctx, namespace), &criapi.ImageStatusRequest{Image: &criapi.ImageSpec{Image: name}})
	if errdefs.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("get status of image %s: %w", name, err)
	}
	return status.GetImage().GetId(), nil
}

type pullKey struct{}

// intercept sees every unary call to the API.
func (h *host) intercept(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	pull, ok := req.(*criapi.PullImageRequest)
	if !ok {
		return handler(ctx, req)
	}
	if id, err := h.awaitImport(ctx, pull.GetImage().GetImage()); err != nil {
		return nil, err
	} else if id != "" {
		return &criapi.PullImageResponse{ImageRef: id}, nil
	}
	return handler(context.WithValue(ctx, pullKey{}, pull), req)
}

// awaitImport waits until the archives that are imported at start are in, for
// nothing can be pulled where there is no registry. It returns the image's ID if
// that is how the image came.
func (h *host) awaitImport(ctx context.Context, name string) (string, error) {
	select {
	case <-h.imported:
		return "", nil
	default:
	}
	select {
	case <-h.imported:
		return h.imageID(ctx, name)
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// api is the gRPC server, a plugin of containerd.
type api struct {
	server *grpc.Server
	socket string
	host   *host
	served sync.WaitGroup
}

// Start listens and serves in the background.
func (a *api) Start(context.Context) error {
	listener, err := listen(a.socket)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", a.socket, err)
	}
	a.served.Go(func() {
		if err := a.server.Serve(listener); err != nil {
			a.host.fail(fmt.Errorf("serve on %s: %w", listener.Addr(), err))
		}
	})
	return nil
}

// Close ends the server, calls in progress a second later at the latest.
func (a *api) Close() error {
	timer := time.AfterFunc(graceful, a.server.Stop)
	defer timer.Stop()
	a.server.GracefulStop()
	a.served.Wait()
	return nil
}
