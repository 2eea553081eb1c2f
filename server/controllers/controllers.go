// Package controllers runs the loops of kube-controller-manager in the process.
//
// It promises: every controller that upstream has on by default, each calling the API as the service account that RBAC's
// built-in roles name for it, with no listener and no client-side limit on the request rate. Whether this process is the one
// that runs them is decided elsewhere; LeaderElection is what its flags say of that. Built is closed when all are constructed:
// the kubelet is made after that, or before it with KubeletFirst; see csi.go.
package controllers

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/healthz"
	cacheddiscovery "k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/record"
	componentbase "k8s.io/component-base/config"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kcmconfig "k8s.io/kubernetes/cmd/kube-controller-manager/app/config"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/volume/attachdetach"

	"github.com/clusterd/clusterd/internal/inproc"
	"github.com/clusterd/clusterd/internal/upstream"
)

// Config is what the controllers are made from. All fields are required unless marked optional.
type Config struct {
	ClusterCIDRs, ServiceCIDRs []netip.Prefix
	RootCA                     string   // PEM file: published to every namespace
	ServiceAccountKey          string   // PEM file: signs tokens of secrets
	SigningCert, SigningKey    string   // PEM files: the CA for client certificates
	ServingCert, ServingKey    string   // PEM files: the CA for kubelets' serving certificates
	VolumePlugins              string   // FlexVolume drivers, a directory
	Args                       []string // optional: the user's key=value flags for kube-controller-manager
	Transport                  *inproc.Transport
	// Shared is whether other servers may run them, too; optional.
	Shared bool
	// KubeletFirst is whether the process has a kubelet that is made, or being made; optional.
	KubeletFirst bool
}

const argFlag = "kube-controller-manager-arg"

// manager is the user and user agent of what all controllers share.
const manager = "kube-controller-manager"

// Controllers is the component.
type Controllers struct {
	cfg   Config
	kcm   kcmconfig.Config
	log   *slog.Logger
	built chan struct{}
}

// New makes the controllers' component. It does no I/O; its error names every mistake in Args.
func New(cfg Config, log *slog.Logger) (*Controllers, error) {
	o, err := options.NewKubeControllerManagerOptions()
	if err != nil {
		return nil, fmt.Errorf("default the controller manager's options: %w", err)
	}
	all, off, aliases := app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases()
	if err := upstream.Parse(upstream.Merge(o.Flags(all, off, aliases)), argFlag, args(cfg), cfg.Args); err != nil {
		return nil, err
	}
	if err := o.Validate(all, off, aliases); err != nil {
		return nil, fmt.Errorf("--%s: %w", argFlag, err)
	}
	c := &Controllers{cfg: cfg, log: log, built: make(chan struct{})}
	if err := o.ApplyTo(&c.kcm, all, off, aliases); err != nil {
		return nil, fmt.Errorf("apply the controller manager's options: %w", err)
	}
	// The attach-detach controller's loop compares two caches in memory; every 100 ms is upstream's pace for large clusters.
	attachdetach.DefaultTimerConfig.ReconcilerLoopPeriod = time.Second
	return c, nil
}

// args are the flags that make kube-controller-manager ours.
func args(c Config) []string {
	return []string{
		"allocate-node-cidrs=true",
		"cluster-cidr=" + upstream.Join(c.ClusterCIDRs),
		"cluster-signing-kube-apiserver-client-cert-file=" + c.SigningCert,
		"cluster-signing-kube-apiserver-client-key-file=" + c.SigningKey,
		"cluster-signing-kubelet-client-cert-file=" + c.SigningCert,
		"cluster-signing-kubelet-client-key-file=" + c.SigningKey,
		"cluster-signing-kubelet-serving-cert-file=" + c.ServingCert,
		"cluster-signing-kubelet-serving-key-file=" + c.ServingKey,
		"cluster-signing-legacy-unknown-cert-file=" + c.ServingCert,
		"cluster-signing-legacy-unknown-key-file=" + c.ServingKey,
		"configure-cloud-routes=false",
		"flex-volume-plugin-dir=" + c.VolumePlugins,
		fmt.Sprintf("leader-elect=%t", c.Shared),
		// Upstream's 15, 10 and 2 seconds let a cluster wait for 20 after its server was lost.
		"leader-elect-lease-duration=6s",
		"leader-elect-renew-deadline=4s",
		"leader-elect-retry-period=1s",
		"profiling=false",
		"root-ca-file=" + c.RootCA,
		"secure-port=0",
		"service-account-private-key-file=" + c.ServiceAccountKey,
		"service-cluster-ip-range=" + upstream.Join(c.ServiceCIDRs),
		"use-service-account-credentials=true",
	}
}

// LeaderElection is what the flags say of it.
func (c *Controllers) LeaderElection() componentbase.LeaderElectionConfiguration {
	return c.kcm.ComponentConfig.Generic.LeaderElection
}

// Name is the component's name.
func (c *Controllers) Name() string { return "controllers" }

// Built is closed when every controller is constructed, or Run has ended before.
func (c *Controllers) Built() <-chan struct{} { return c.built }

// Run runs the controllers until ctx ends. It is ready when their caches' sources are started.
func (c *Controllers) Run(ctx context.Context, ready func()) error {
	built := sync.OnceFunc(func() { close(c.built) })
	defer built()
	events := record.NewBroadcaster(record.WithContext(ctx))
	defer events.Shutdown()
	root := builder{c.cfg.Transport, asManager}
	client, err := root.Client(manager)
	if err != nil {
		return err
	}
	events.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: client.CoreV1().Events("")})
	c.kcm.EventBroadcaster = events
	c.kcm.EventRecorder = events.NewRecorder(scheme.Scheme, v1.EventSource{Component: manager})

	cc, err := c.context(ctx, root)
	if err != nil {
		return err
	}
	list, err := c.build(ctx, cc, root)
	if ctx.Err() != nil { // its constructors read from the API, and fail when they are interrupted
		return nil
	}
	if err != nil {
		return err
	}
	built()
	cc.InformerFactory.Start(ctx.Done())
	cc.ObjectOrMetadataInformerFactory.Start(ctx.Done())
	close(cc.InformersStarted)
	ready()
	if !app.RunControllers(ctx, cc, list, app.ControllerStartJitter, stopTimeout) {
		c.log.Debug("controllers did not all end in time")
	}
	cc.InformerFactory.Shutdown()
	return nil
}

// stopTimeout is how long the controllers get to end. What they have not done by then the next start does.
const stopTimeout = 2 * time.Second

// build constructs the controllers, the one for service account tokens first: it has no constructor among the exported ones.
func (c *Controllers) build(ctx context.Context, cc app.ControllerContext, root builder) ([]app.Controller, error) {
	tokens, err := newTokens(ctx, cc, root)
	if err != nil {
		return nil, err
	}
	descriptors := app.NewControllerDescriptors()
	delete(descriptors, names.ServiceAccountTokenController)
	if c.cfg.KubeletFirst {
		awaitKubelet(ctx)
	}
	csi := keepCSI()
	list, err := app.BuildControllers(ctx, cc, descriptors, nil, noHealth{})
	csi.restore()
	if err != nil {
		return nil, fmt.Errorf("build the controllers: %w", err)
	}
	return append(list, tokens), nil
}

type noHealth struct{}

func (noHealth) AddHealthChecker(...healthz.HealthChecker) {}

// context makes what controllers share. It follows upstream's CreateControllerContext, which cannot be called since it
// builds informers from a client for another process.
func (c *Controllers) context(ctx context.Context, root builder) (app.ControllerContext, error) {
	shared, err := root.Client("shared-informers")
	if err != nil {
		return app.ControllerContext{}, err
	}
	conf, err := root.Config("metadata-informers")
	if err != nil {
		return app.ControllerContext{}, err
	}
	meta, err := metadata.NewForConfig(conf)
	if err != nil {
		return app.ControllerContext{}, fmt.Errorf("make the metadata client: %w", err)
	}
	resync := app.ResyncPeriod(c.kcm.Complete())
	typed := informers.NewSharedInformerFactoryWithOptions(shared, resync(), informers.WithTransform(upstream.DropManagedFields))
	objects := metadatainformer.NewSharedInformerFactoryWithOptions(meta, resync(), metadatainformer.WithTransform(upstream.DropManagedFields))
	cc := app.ControllerContext{
		ClientBuilder:                   builder{c.cfg.Transport, inproc.ServiceAccount},
		InformerFactory:                 typed,
		ObjectOrMetadataInformerFactory: informerfactory.NewInformerFactory(typed, objects),
		ComponentConfig:                 c.kcm.ComponentConfig,
		RESTMapper:                      mapper(ctx, shared),
		InformersStarted:                make(chan struct{}),
		ResyncPeriod:                    resync,
		ControllerManagerMetrics:        controllersmetrics.NewControllerManagerMetrics(manager),
	}
	cc.GraphBuilder = graph(ctx, cc, meta)
	controllersmetrics.Register()
	return cc, nil
}

// mapperReset is how often the controllers look for kinds that have appeared; upstream's figure.
const mapperReset = 30 * time.Second

func mapper(ctx context.Context, c clientset.Interface) *restmapper.DeferredDiscoveryRESTMapper {
	m := restmapper.NewDeferredDiscoveryRESTMapper(cacheddiscovery.NewMemCacheClient(c.Discovery()))
	go wait.Until(m.Reset, mapperReset, ctx.Done())
	return m
}

// graph makes the garbage collector's graph, nil when the collector is off.
func graph(ctx context.Context, cc app.ControllerContext, meta metadata.Interface) *garbagecollector.GraphBuilder {
	conf := cc.ComponentConfig.GarbageCollectorController
	if !conf.EnableGarbageCollector || !cc.IsControllerEnabled(app.NewControllerDescriptors()[names.GarbageCollectorController]) {
		return nil
	}
	ignored := map[schema.GroupResource]struct{}{}
	for _, r := range conf.GCIgnoredResources {
		ignored[schema.GroupResource{Group: r.Group, Resource: r.Resource}] = struct{}{}
	}
	return garbagecollector.NewDependencyGraphBuilder(ctx, meta, cc.RESTMapper, ignored, cc.ObjectOrMetadataInformerFactory, cc.InformersStarted)
}
