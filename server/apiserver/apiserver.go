// Package apiserver runs the kube-apiserver chain (aggregator, core API, custom resources) in the process.
//
// It promises: a component that is ready when /readyz says so; a handler that the other parts of the process reach through
// an inproc.Transport, each under its own identity, with authorization and admission in force; storage called as a
// library, without a connection; and no anonymous access other than to the health endpoints unless the user configures
// anonymous access explicitly.
package apiserver

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/client/v3/kubernetes"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/flagz"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/clusterd/clusterd/internal/inproc"
	"github.com/clusterd/clusterd/internal/upstream"
)

// Config is what the API server is made from. All fields are required unless marked optional.
type Config struct {
	BindAddress netip.Addr
	Port        int
	// AdvertiseAddress is where clients inside the cluster reach it at that moment: the endpoint of the Service kubernetes.
	AdvertiseAddress func() netip.Addr
	// AddressChanges tells when that may be another one; optional.
	AddressChanges func(context.Context) (<-chan struct{}, error)
	ServiceCIDRs   []netip.Prefix
	NodePorts      string // a range like 30000-32767
	ClusterDomain  string
	Files          Files
	Args           []string // optional: the user's key=value flags for kube-apiserver

	// Datastore makes clients of the store that the server keeps its objects in, unless they are in Etcd.
	Datastore func() (*kubernetes.Client, error)
	Etcd      Etcd
	// Transport is bound to the server's handler when it can be called.
	Transport *inproc.Transport
	// Front, if not nil, answers requests before the server does, without its authentication, or hands them on to it.
	Front func(next http.Handler) http.Handler
	// Upgrades are handlers of long-lived requests by path, which the server authenticates and authorizes first.
	Upgrades map[string]http.Handler
	// Shared is whether there may be other servers on the datastore; optional.
	Shared bool
	// Dial, if not nil, connects to nodes and pods.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// ResourceMetrics is whether it serves metrics.k8s.io.
	ResourceMetrics bool
}

// Etcd is an etcd that the server connects to. Files are PEM; those of TLS are optional.
type Etcd struct {
	Servers       []string
	CA, Cert, Key string
}

// Files are the paths of the certificates and keys, PEM. The server follows changes of all of them.
type Files struct {
	Cert, Key               string // serving
	ClientCA                string // signs client certificates
	ServerCA                string // signs kubelets' serving certificates
	RequestHeaderCA         string // signs the front proxy's
	ProxyCert, ProxyKey     string // the aggregation layer's client certificate
	KubeletCert, KubeletKey string // the client certificate for kubelets, of KubeletUser
	ServiceAccountKey       string // signs service account tokens
}

// endpointInterval is how often the endpoint of the Service kubernetes is looked at. One server writes it once; this only
// mends it after somebody has changed it. Several servers renew theirs each sharedInterval, and take out one that has not
// done so for sharedLife: upstream's 10 and 15 seconds would send pods to a dead server for half a minute.
const (
	endpointInterval = time.Minute
	sharedInterval   = 3 * time.Second
	sharedLife       = 9 * time.Second
)

// watchGrace bounds how long ending the watches may take at the end.
const watchGrace = time.Second

// datastoreURL stands for the store in this process, and is never dialled: see upstream.Store.
const datastoreURL = "http://in-process:2379"

// argFlag is the flag of clusterd that Args come from.
const argFlag = "kube-apiserver-arg"

// Server is the API server component.
type Server struct {
	cfg  Config
	opts *options.ServerRunOptions
	log  *slog.Logger
}

// New makes an API server. It does no I/O; its error names the mistakes in Args that show without the certificates.
func New(cfg Config, log *slog.Logger) (*Server, error) {
	s := options.NewServerRunOptions()
	sets := s.Flags()
	s.Flagz = flagz.NamedFlagSetsReader{FlagSets: sets}
	if err := upstream.Parse(upstream.Merge(sets), argFlag, args(cfg), cfg.Args); err != nil {
		return nil, err
	}
	if err := validate(s); err != nil {
		return nil, err
	}
	if cfg.Datastore != nil {
		upstream.Store(datastoreURL, cfg.Datastore)
	}
	// A client's watch would hold the end up for a minute, or with the first of these for two seconds. With the second the
	// watches are ended, so that their connections close at once.
	s.GenericServerRunOptions.ShutdownSendRetryAfter = true
	s.GenericServerRunOptions.ShutdownWatchTerminationGracePeriod = watchGrace
	return &Server{cfg: cfg, opts: s, log: log}, nil
}

// validate checks what can be checked before the certificates exist; the rest is checked in Run.
func validate(s *options.ServerRunOptions) error {
	var errs []error
	for _, part := range [][]error{s.Admission.Validate(), s.Features.Validate(), s.Authorization.Validate(), s.Audit.Validate(), s.Etcd.Validate(), s.Metrics.Validate()} {
		errs = append(errs, part...)
	}
	if len(errs) > 0 {
		return fmt.Errorf("--%s: %w", argFlag, utilerrors.NewAggregate(errs))
	}
	return nil
}

// etcdArgs are the flags for where the objects are.
func etcdArgs(c Config) []string {
	if c.Datastore != nil {
		return []string{"etcd-compaction-interval=0", "etcd-servers=" + datastoreURL} // the datastore compacts by itself
	}
	return slices.DeleteFunc([]string{
		"etcd-cafile=" + c.Etcd.CA,
		"etcd-certfile=" + c.Etcd.Cert,
		"etcd-keyfile=" + c.Etcd.Key,
		"etcd-servers=" + strings.Join(c.Etcd.Servers, ","),
	}, func(arg string) bool { return strings.HasSuffix(arg, "=") })
}

// reconciler is how the endpoints of the Service kubernetes are kept.
func reconciler(c Config) string {
	if c.Shared {
		return "lease"
	}
	return "master-count" // a lease would be renewed in the store all the time, for nobody
}

// args are the flags that make kube-apiserver ours.
func args(c Config) []string {
	return append(etcdArgs(c),
		"advertise-address="+c.AdvertiseAddress().String(),
		"allow-privileged=true",
		"authorization-mode=Node,RBAC",
		"bind-address="+c.BindAddress.String(),
		"client-ca-file="+c.Files.ClientCA,
		"enable-admission-plugins=NodeRestriction",
		"enable-aggregator-routing=true",
		"enable-bootstrap-token-auth=true",
		"endpoint-reconciler-type="+reconciler(c),
		"etcd-count-metric-poll-period=0",
		"kubelet-certificate-authority="+c.Files.ServerCA,
		"kubelet-client-certificate="+c.Files.KubeletCert,
		"kubelet-client-key="+c.Files.KubeletKey,
		"kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
		"profiling=false",
		"proxy-client-cert-file="+c.Files.ProxyCert,
		"proxy-client-key-file="+c.Files.ProxyKey,
		"requestheader-allowed-names=system:auth-proxy",
		"requestheader-client-ca-file="+c.Files.RequestHeaderCA,
		"requestheader-extra-headers-prefix=X-Remote-Extra-",
		"requestheader-group-headers=X-Remote-Group",
		"requestheader-username-headers=X-Remote-User",
		fmt.Sprintf("secure-port=%d", c.Port),
		"service-account-issuer=https://kubernetes.default.svc."+c.ClusterDomain,
		"service-account-key-file="+c.Files.ServiceAccountKey,
		"service-account-signing-key-file="+c.Files.ServiceAccountKey,
		"service-cluster-ip-range="+upstream.Join(c.ServiceCIDRs),
		"service-node-port-range="+c.NodePorts,
		"shutdown-delay-duration=0s",
		"tls-cert-file="+c.Files.Cert,
		"tls-private-key-file="+c.Files.Key,
	)
}

// Name is the component's name.
func (s *Server) Name() string { return "api server" }

// Run serves until ctx ends. It is ready when /readyz is.
//
// A start is not cut off, but stopped when it is complete: upstream ends the process when a hook of its start fails. Whoever
// runs the server bounds the stop.
func (s *Server) Run(ctx context.Context, ready func()) error {
	if ctx.Err() != nil {
		return nil
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	agg, err := s.chain(life)
	if err != nil {
		return err
	}
	prepared, err := agg.PrepareRun()
	if err != nil {
		return fmt.Errorf("prepare the API server: %w", err)
	}
	s.cfg.Transport.SetHandler(agg.GenericAPIServer.Handler)
	done := make(chan error, 1)
	go func() { done <- prepared.Run(life) }()
	if err := s.awaitReady(life, done); err != nil {
		return err
	}
	if ctx.Err() == nil {
		ready()
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		stop()
		return <-done
	}
}

// chain makes the delegating servers, with the process's own identities accepted in front of all authenticators.
func (s *Server) chain(ctx context.Context) (*aggregator.APIAggregator, error) {
	completed, err := s.opts.Complete(ctx)
	if err != nil {
		return nil, fmt.Errorf("complete the API server's options: %w", err)
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return nil, fmt.Errorf("validate the API server's options: %w", utilerrors.NewAggregate(errs))
	}
	config, err := s.newConfig(completed)
	if err != nil {
		return nil, fmt.Errorf("configure the API server: %w", err)
	}
	auth := &config.Aggregator.GenericConfig.Authentication
	if !s.anonymousConfigured() {
		auth.Authenticator = limitAnonymous(auth.Authenticator)
	}
	auth.Authenticator = inproc.Authenticator(auth.Authenticator)
	if s.cfg.Shared {
		config.KubeAPIs.Extra.EndpointReconcilerConfig.Interval = sharedInterval
		config.KubeAPIs.Extra.MasterEndpointReconcileTTL = sharedLife
	} else if err := s.keepEndpoint(ctx, config); err != nil {
		return nil, err
	}
	s.extend(config.Aggregator.GenericConfig)
	complete, err := config.Complete()
	if err != nil {
		return nil, fmt.Errorf("complete the API server's configuration: %w", err)
	}
	agg, err := app.CreateServerChain(complete)
	if err != nil {
		return nil, fmt.Errorf("create the API server: %w", err)
	}
	for path, h := range s.cfg.Upgrades {
		agg.GenericAPIServer.Handler.NonGoRestfulMux.Handle(path, h)
	}
	if s.cfg.ResourceMetrics {
		if err := s.addResourceMetrics(agg, complete.KubeAPIs.Extra.KubeletClientConfig); err != nil {
			return nil, err
		}
	}
	return agg, s.addKubeletHook(agg.GenericAPIServer)
}

// keepEndpoint has the endpoint of the Service kubernetes follow the server's address until ctx ends.
func (s *Server) keepEndpoint(ctx context.Context, c *app.Config) error {
	e, err := newEndpoint(c.KubeAPIs.ControlPlane.Generic.LoopbackClientConfig, s.cfg.AdvertiseAddress, s.log)
	if err != nil {
		return err
	}
	c.KubeAPIs.Extra.EndpointReconcilerConfig.Interval = endpointInterval
	c.KubeAPIs.Extra.EndpointReconcilerConfig.Reconciler = e
	if s.cfg.AddressChanges == nil {
		return nil
	}
	changes, err := s.cfg.AddressChanges(ctx)
	if err != nil {
		return err
	}
	go e.follow(ctx, changes)
	return nil
}

// extend puts what the configuration adds to the API into the chain of handlers.
func (s *Server) extend(generic *server.RecommendedConfig) {
	if s.cfg.Front != nil {
		build := generic.BuildHandlerChainFunc
		generic.BuildHandlerChainFunc = func(api http.Handler, c *server.Config) http.Handler { return s.cfg.Front(build(api, c)) }
	}
	long := generic.LongRunningFunc
	generic.LongRunningFunc = func(r *http.Request, info *request.RequestInfo) bool {
		return s.cfg.Upgrades[r.URL.Path] != nil || long(r, info)
	}
}

// awaitReady polls /readyz through the handler. It ends early when the server does.
func (s *Server) awaitReady(ctx context.Context, done <-chan error) error {
	client := http.Client{Transport: s.cfg.Transport.Config(inproc.User("system:apiserver", "system:masters"), "clusterd").Transport}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok(ctx, &client) {
			return nil
		}
		select {
		case <-tick.C:
		case err := <-done:
			if err == nil {
				err = fmt.Errorf("the API server ended before it was ready")
			}
			return err
		}
	}
}

func ok(ctx context.Context, c *http.Client) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://in-process/readyz", nil)
	if err != nil {
		return false
	}
	res, err := c.Do(r)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, res.Body) // closing earlier would abort the handler
	_ = res.Body.Close()
	return err == nil && res.StatusCode == http.StatusOK
}
