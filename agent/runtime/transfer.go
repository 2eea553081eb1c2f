package runtime

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/containerd/containerd/v2/core/transfer"
	ociregistry "github.com/containerd/containerd/v2/core/transfer/registry"
	"github.com/containerd/containerd/v2/pkg/reference"
	_ "github.com/containerd/containerd/v2/plugins/transfer"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/clusterd/clusterd/agent/runtime/registries"
)

// Transfer services: containerd's own is disabled and lives on inside of ours.
const (
	ownTransferPlugin      = "io.containerd.transfer.v1.clusterd"
	upstreamTransferPlugin = "io.containerd.transfer.v1.local"
)

// transferRegistration wraps containerd's transfer service.
func transferRegistration() (*plugin.Registration, error) {
	for _, upstream := range registry.Graph(nil) {
		if upstream.URI() != upstreamTransferPlugin {
			continue
		}
		own := upstream
		own.ID = "clusterd"
		own.InitFn = func(ic *plugin.InitContext) (any, error) {
			h, err := hostFrom(ic.Context)
			if err != nil {
				return nil, err
			}
			inner, err := upstream.InitFn(ic)
			if err != nil {
				return nil, err
			}
			return &transferrer{inner: inner.(transfer.Transferrer), registries: h.registries}, nil
		}
		return &own, nil
	}
	return nil, fmt.Errorf("containerd has no plugin %s", upstreamTransferPlugin)
}

// transferrer pulls from where registries.yaml says.
type transferrer struct {
	inner      transfer.Transferrer
	registries *registries.File
}

// Transfer implements transfer.Transferrer.
func (t *transferrer) Transfer(ctx context.Context, src, dst any, opts ...transfer.Opt) error {
	image, fromRegistry := src.(*ociregistry.OCIRegistry)
	if _, toStore := dst.(transfer.ImageStorer); !fromRegistry || !toStore {
		return t.inner.Transfer(ctx, src, dst, opts...)
	}
	auth, err := pullAuth(ctx, image.Image())
	if err != nil {
		return err
	}
	source, err := t.registries.Current().Source(image.Image(), auth)
	if err != nil {
		return err
	}
	if err := t.inner.Transfer(ctx, source, dst, opts...); err != nil {
		return opaque{err}
	}
	return nil
}

// opaque is an error that can be compared but not unwrapped. Encoding the error of a pull, containerd (errdefs/pkg 0.3.0)
// follows Unwrap to where it gives nil, as that of net.DNSError does, and panics when the error is not the first of several.
type opaque struct{ cause error }

func (o opaque) Error() string        { return o.cause.Error() }
func (o opaque) Is(target error) bool { return errors.Is(o.cause, target) }
func (o opaque) As(target any) bool   { return errors.As(o.cause, target) }

// pullAuth returns the credentials that came with a CRI pull, unless they say
// that they are for another registry than the image's.
func pullAuth(ctx context.Context, image string) (registries.Auth, error) {
	pull, ok := ctx.Value(pullKey{}).(*criapi.PullImageRequest)
	if !ok || pull.GetAuth() == nil {
		return registries.Auth{}, nil
	}
	a := pull.GetAuth()
	if a.ServerAddress != "" {
		spec, err := reference.Parse(image)
		if err != nil {
			return registries.Auth{}, fmt.Errorf("parse image reference %s: %w", image, err)
		}
		if server, err := url.Parse(a.ServerAddress); err != nil || server.Host != spec.Hostname() {
			return registries.Auth{}, nil
		}
	}
	return registries.Auth{Username: a.Username, Password: a.Password, Auth: a.Auth, IdentityToken: a.IdentityToken}, nil
}
