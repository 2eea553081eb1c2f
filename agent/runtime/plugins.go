package runtime

import (
	"errors"
	"fmt"
	"sync"

	_ "github.com/containerd/containerd/api/types/runc/options" // the type of runc's options
	"github.com/containerd/containerd/v2/client"
	_ "github.com/containerd/containerd/v2/core/runtime/v2"
	_ "github.com/containerd/containerd/v2/plugins/content/local/plugin"
	_ "github.com/containerd/containerd/v2/plugins/cri"
	_ "github.com/containerd/containerd/v2/plugins/cri/images"
	_ "github.com/containerd/containerd/v2/plugins/cri/runtime"
	_ "github.com/containerd/containerd/v2/plugins/diff/walking/plugin"
	_ "github.com/containerd/containerd/v2/plugins/events"
	_ "github.com/containerd/containerd/v2/plugins/gc"
	_ "github.com/containerd/containerd/v2/plugins/leases"
	_ "github.com/containerd/containerd/v2/plugins/metadata"
	_ "github.com/containerd/containerd/v2/plugins/mount"
	_ "github.com/containerd/containerd/v2/plugins/sandbox"
	_ "github.com/containerd/containerd/v2/plugins/server/ttrpc"
	_ "github.com/containerd/containerd/v2/plugins/services/containers"
	_ "github.com/containerd/containerd/v2/plugins/services/content"
	_ "github.com/containerd/containerd/v2/plugins/services/diff"
	_ "github.com/containerd/containerd/v2/plugins/services/events"
	_ "github.com/containerd/containerd/v2/plugins/services/images"
	_ "github.com/containerd/containerd/v2/plugins/services/introspection"
	_ "github.com/containerd/containerd/v2/plugins/services/leases"
	_ "github.com/containerd/containerd/v2/plugins/services/mounts"
	_ "github.com/containerd/containerd/v2/plugins/services/namespaces"
	_ "github.com/containerd/containerd/v2/plugins/services/sandbox"
	_ "github.com/containerd/containerd/v2/plugins/services/snapshots"
	_ "github.com/containerd/containerd/v2/plugins/services/streaming"
	_ "github.com/containerd/containerd/v2/plugins/services/tasks"
	_ "github.com/containerd/containerd/v2/plugins/services/transfer"
	_ "github.com/containerd/containerd/v2/plugins/services/version"
	_ "github.com/containerd/containerd/v2/plugins/services/warning"
	_ "github.com/containerd/containerd/v2/plugins/snapshots/native/plugin"
	_ "github.com/containerd/containerd/v2/plugins/snapshots/overlay/plugin"
	_ "github.com/containerd/containerd/v2/plugins/streaming"

	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"google.golang.org/grpc"
)

// registerPlugins adds this package's plugins to containerd's: the API server in
// the place of the one that listens by itself and registers metrics, and the
// transfer service in the place of the one that reads hosts.toml.
var registerPlugins = sync.OnceValue(func() error {
	transfer, err := transferRegistration()
	if err != nil {
		return err
	}
	registry.Register(transfer)
	registry.Register(&plugin.Registration{
		Type: plugins.ServerPlugin,
		ID:   "clusterd",
		Requires: []plugin.Type{
			plugins.GRPCPlugin, plugins.ServicePlugin, plugins.EventPlugin, plugins.LeasePlugin,
			plugins.SandboxStorePlugin, plugins.TransferPlugin, plugins.MountManagerPlugin,
		},
		InitFn: initAPI,
	})
	return nil
})

// initAPI makes the server for the services of all other plugins.
func initAPI(ic *plugin.InitContext) (any, error) {
	h, err := hostFrom(ic.Context)
	if err != nil {
		return nil, err
	}
	if h.client, err = client.New("", client.WithDefaultNamespace(namespace), client.WithInMemoryServices(ic)); err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	cri, err := ic.GetByID(plugins.GRPCPlugin, "cri")
	if err != nil {
		return nil, err
	}
	var ok bool
	if h.images, ok = cri.(imageStatus); !ok {
		return nil, errors.New("CRI has no image service")
	}
	unary, stream := survive(h.log)
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(unary, h.intercept), grpc.StreamInterceptor(stream),
		grpc.MaxRecvMsgSize(defaults.DefaultMaxRecvMsgSize), grpc.MaxSendMsgSize(defaults.DefaultMaxSendMsgSize))
	for _, p := range ic.Plugins().GetAll() {
		if err := register(server, p); err != nil {
			return nil, fmt.Errorf("register %s: %w", p.Registration.URI(), err)
		}
	}
	return &api{server: server, socket: ic.Properties[plugins.PropertyGRPCAddress], host: h}, nil
}

// register adds a plugin's service to the server. A plugin that failed was
// reported by containerd and is left out.
func register(server *grpc.Server, p *plugin.Plugin) error {
	if p.Registration.Type != plugins.GRPCPlugin {
		return nil
	}
	instance, err := p.Instance()
	if err != nil {
		return nil
	}
	if service, ok := instance.(interface{ Register(*grpc.Server) error }); ok {
		return service.Register(server)
	}
	return nil
}
