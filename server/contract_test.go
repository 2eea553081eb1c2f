package server

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/datastore"
	"github.com/clusterd/clusterd/internal/inproc"
	"github.com/clusterd/clusterd/internal/lifecycle"
	"github.com/clusterd/clusterd/internal/options"
	"github.com/clusterd/clusterd/internal/pki"
	"github.com/clusterd/clusterd/internal/testkit"
	"github.com/clusterd/clusterd/internal/upstream"
	"github.com/clusterd/clusterd/server/apiserver"
	"github.com/clusterd/clusterd/server/controllers"
	"github.com/clusterd/clusterd/server/scheduler"
	"github.com/clusterd/clusterd/server/tunnel"
)

// setUp sets what is process-wide, once for all tests.
var setUp = sync.OnceValue(func() error {
	return upstream.Setup(upstream.Config{Log: slog.New(slog.DiscardHandler), Exit: func(reason string) { panic(reason) }})
})

// plane is a control plane's configuration with everything in a directory of the test's own.
func plane(t *testing.T) (Config, Deps) {
	t.Helper()
	if err := setUp(); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	dir, err := datadir.New(root)
	if err != nil {
		t.Fatal(err)
	}
	local := netip.MustParseAddr("127.0.0.1")
	cfg := Config{
		Node: options.Node{NodeName: "one"}, BindAddress: local, HTTPSListenPort: freePort(t), AdvertiseAddress: netip.MustParseAddr("192.0.2.5"),
		ClusterCIDRs:         []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")},
		ServiceCIDRs:         []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16")},
		ServiceNodePortRange: utilnet.PortRange{Base: 30000, Size: 2768},
		ClusterDNS:           []netip.Addr{netip.MustParseAddr("10.43.0.10")},
		ClusterDomain:        "cluster.local",
		WriteKubeconfig:      filepath.Join(root, "etc", "kubeconfig.yaml"), WriteKubeconfigMode: 0o600,
	}
	return cfg, Deps{Dir: dir, PKI: pki.Dir(dir.ServerTLS()), Transport: &inproc.Transport{}, NodeIPs: func() []netip.Addr { return []netip.Addr{local} }, Log: slog.New(slog.DiscardHandler)}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// begin runs a component until the end of the test, and returns when it is ready.
func begin(t *testing.T, c lifecycle.Component) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- c.Run(ctx, sync.OnceFunc(func() { close(ready) })) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%s ended with %v", c.Name(), err)
		}
	})
	select {
	case <-ready:
	case err := <-ended:
		ended <- nil
		t.Fatalf("%s ended before it was ready: %v", c.Name(), err)
	case <-time.After(2 * time.Minute):
		t.Fatalf("%s is not ready", c.Name())
	}
}

// beginStore makes the certificates and runs the datastore: all that an API server needs.
func beginStore(t *testing.T, cfg Config, d Deps) *datastore.Store {
	t.Helper()
	begin(t, newCertificates(cfg, d))
	store, err := datastore.New(datastore.Config{Path: d.Dir.DB()}, d.Log)
	if err != nil {
		t.Fatal(err)
	}
	begin(t, store)
	return store
}

// beginAPI runs an API server, which d's transport reaches.
func beginAPI(t *testing.T, cfg Config, d Deps) {
	t.Helper()
	api, err := apiserver.New(apiserverConfig(cfg, d, beginStore(t, cfg, d), access{tunnels: tunnel.New(nil, d.Log)}), d.Log)
	if err != nil {
		t.Fatal(err)
	}
	begin(t, api)
}

func TestCertificatesContract(t *testing.T) {
	testkit.Component(t, func(t *testing.T) lifecycle.Component {
		cfg, d := plane(t)
		return newCertificates(cfg, d)
	})
}

func TestAPIServerContract(t *testing.T) {
	testkit.Component(t, func(t *testing.T) lifecycle.Component {
		cfg, d := plane(t)
		api, err := apiserver.New(apiserverConfig(cfg, d, beginStore(t, cfg, d), access{tunnels: tunnel.New(nil, d.Log)}), d.Log)
		if err != nil {
			t.Fatal(err)
		}
		return api
	}, slow...)
}

func TestLoopsContract(t *testing.T) {
	cfg, d := plane(t)
	beginAPI(t, cfg, d)
	for name, make := range map[string]func() (lifecycle.Component, error){
		"controllers": func() (lifecycle.Component, error) { return controllers.New(controllersConfig(cfg, d), d.Log) },
		"scheduler": func() (lifecycle.Component, error) {
			return scheduler.New(scheduler.Config{Transport: d.Transport}, d.Log)
		},
		"role": func() (lifecycle.Component, error) { return newRole(cfg.NodeName, d.Transport), nil },
	} {
		t.Run(name, func(t *testing.T) {
			testkit.Component(t, func(t *testing.T) lifecycle.Component {
				c, err := make()
				if err != nil {
					t.Fatal(err)
				}
				return c
			}, slow...)
		})
	}
}

// slow gives upstream's parts their time, and excuses what upstream starts for the life of the process.
var slow = []testkit.ComponentOption{
	testkit.StartTimeout(2 * time.Minute), testkit.StopTimeout(time.Minute),
	testkit.MayLeak("client-go/transport.(*dynamicClientCert)"), // watches the certificate files of the clients for kubelets and webhooks
	testkit.MayLeak("wait.PollImmediateUntilWithContext.poller"),
	testkit.MayLeak("workqueue.(*Typed[...]).updateUnfinishedWorkLoop"), // the queues of these, and of a controller or two
	testkit.MayLeak("workqueue.(*delayingType[...]).waitingLoop"),
	testkit.MayLeak("created by k8s.io/apiserver/pkg/server/healthz.(*log)"), // once a process
	testkit.MayLeak("os/signal.loop"),                                        // the scheduler listens for SIGUSR2
	// Of the API server and the datastore in the background, and soon over.
	testkit.MayLeak("cacher.(*watchCache).waitUntilFreshLocked"),
	testkit.MayLeak("net.(*pipeDeadline).set"),
}
