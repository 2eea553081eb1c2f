package apiserver

import (
	"fmt"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericfeatures "k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/server/filters"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/openapi"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
	"k8s.io/kubernetes/pkg/kubeapiserver"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"

	"github.com/clusterd/clusterd/internal/inproc"
	"github.com/clusterd/clusterd/internal/upstream"
	"github.com/clusterd/clusterd/server/resourcemetrics"
)

// newConfig is upstream's app.NewConfig. It differs in that the server's own informers read through the process instead of a
// TLS connection to itself, have no periodic resync and no name in metrics, and in that the store is not reached through an
// egress selector.
func (s *Server) newConfig(o options.CompletedOptions) (*app.Config, error) {
	generic, factory, storage, err := s.generic(o)
	if err != nil {
		return nil, err
	}
	kube, resolver, initializers, err := app.CreateKubeAPIServerConfig(o, generic, factory, storage)
	if err != nil {
		return nil, fmt.Errorf("configure the core API: %w", err)
	}
	if s.cfg.Dial != nil {
		kube.Extra.KubeletClientConfig.Lookup = func(egressselector.NetworkContext) (utilnet.DialFunc, error) { return s.cfg.Dial, nil }
		kube.ControlPlane.ProxyTransport = kube.ControlPlane.ProxyTransport.Clone()
		kube.ControlPlane.ProxyTransport.DialContext = s.cfg.Dial
	}
	cp := kube.ControlPlane
	auth := webhook.NewDefaultAuthenticationInfoResolverWrapper(cp.ProxyTransport, cp.Generic.EgressSelector, cp.Generic.LoopbackClientConfig, cp.Generic.TracerProvider)
	ext, err := controlplaneapiserver.CreateAPIExtensionsConfig(*cp.Generic, cp.VersionedInformers, initializers, o.CompletedOptions, o.MasterCount, resolver, auth)
	if err != nil {
		return nil, fmt.Errorf("configure custom resources: %w", err)
	}
	agg, err := controlplaneapiserver.CreateAggregatorConfig(*cp.Generic, o.CompletedOptions, cp.VersionedInformers, resolver, cp.ProxyTransport, cp.Extra.PeerProxy, initializers)
	if err != nil {
		return nil, fmt.Errorf("configure aggregation: %w", err)
	}
	return &app.Config{Options: o, Aggregator: agg, KubeAPIs: kube, ApiExtensions: ext}, nil
}

// generic follows upstream's BuildGenericConfig; the order of the steps is upstream's and matters.
func (s *Server) generic(o options.CompletedOptions) (*genericapiserver.Config, informers.SharedInformerFactory, *serverstorage.DefaultStorageFactory, error) {
	resources := controlplane.DefaultAPIResourceConfigSource()
	g := genericapiserver.NewConfig(codecs())
	g.Flagz = o.Flagz
	g.MergedResourceConfig = resources
	client, err := clientset.NewForConfig(s.cfg.Transport.Config(inproc.User("system:apiserver", "system:masters"), "kube-apiserver"))
	if err != nil {
		return nil, nil, nil, fmt.Errorf("make the API server's client: %w", err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(upstream.DropManagedFields))
	steps := []step{
		{"server", func() error { return o.GenericServerRunOptions.ApplyTo(g) }},
		{"serving", func() error { return s.applyServing(o, g) }},
		{"features", func() error { return o.Features.ApplyTo(g, client, factory) }},
		{"API groups", func() error { return o.APIEnablement.ApplyTo(g, resources, legacyscheme.Scheme) }},
		{"egress", func() error { return o.EgressSelector.ApplyTo(g) }},
		{"tracing", func() error { return o.Traces.ApplyTo(g.EgressSelector, g) }},
	}
	if err := run(steps); err != nil {
		return nil, nil, nil, err
	}
	describe(g)
	storage, err := storageFactory(o, g)
	if err != nil {
		return nil, nil, nil, err
	}
	steps = []step{
		{"authentication", func() error {
			return o.Authentication.ApplyTo(wait.ContextForChannel(g.DrainedNotify()), &g.Authentication, g.SecureServing, g.EgressSelector,
				g.OpenAPIConfig, g.OpenAPIV3Config, client, factory, g.APIServerID)
		}},
		{"authorization", func() error { return authorize(o, g, factory) }},
		{"audit", func() error { return o.Audit.ApplyTo(g) }},
	}
	g.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")
	return g, factory, storage, run(steps)
}

// codecs are those of the API, with CBOR when its gate is on.
func codecs() serializer.CodecFactory {
	if utilfeature.DefaultFeatureGate.Enabled(genericfeatures.CBORServingAndStorage) {
		return serializer.NewCodecFactory(legacyscheme.Scheme, serializer.WithSerializer(cbor.NewSerializerInfo))
	}
	return legacyscheme.Codecs
}

type step struct {
	name  string
	apply func() error
}

func run(steps []step) error {
	for _, s := range steps {
		if err := s.apply(); err != nil {
			return fmt.Errorf("configure %s: %w", s.name, err)
		}
	}
	return nil
}

// applyServing opens the port. Upstream's loopback client stays for what needs a connection: webhooks that go through this
// server, and API services.
func (s *Server) applyServing(o options.CompletedOptions, g *genericapiserver.Config) error {
	if err := o.SecureServing.ApplyToConfig(g); err != nil {
		return err
	}
	g.LoopbackClientConfig.ContentType = runtime.ContentTypeProtobuf
	g.LoopbackClientConfig.DisableCompression = true
	return nil
}

// describe sets what the API says of itself, and which requests run long.
func describe(g *genericapiserver.Config) {
	definitions := openapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(generatedopenapi.GetOpenAPIDefinitions)
	namer := openapinamer.NewDefinitionNamer(legacyscheme.Scheme, apiextensions.Scheme, aggregatorscheme.Scheme, resourcemetrics.Scheme)
	g.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	g.OpenAPIConfig.Info.Title = "Kubernetes"
	g.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	g.OpenAPIV3Config.Info.Title = "Kubernetes"
	g.LongRunningFunc = filters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"),
		sets.NewString("attach", "exec", "proxy", "log", "portforward"))
}

func storageFactory(o options.CompletedOptions, g *genericapiserver.Config) (*serverstorage.DefaultStorageFactory, error) {
	o.Etcd.StorageConfig.Transport.TracerProvider = g.TracerProvider
	c := kubeapiserver.NewStorageFactoryConfigEffectiveVersion(g.EffectiveVersion)
	c.APIResourceConfig = g.MergedResourceConfig
	c.DefaultResourceEncoding.SetEffectiveVersion(g.EffectiveVersion)
	f, err := c.Complete(o.Etcd).New()
	if err != nil {
		return nil, fmt.Errorf("configure storage: %w", err)
	}
	f.StorageConfig.StorageObjectCountTracker = g.StorageObjectCountTracker
	if err := o.Etcd.ApplyWithStorageFactoryTo(f, g); err != nil {
		return nil, fmt.Errorf("configure storage: %w", err)
	}
	return f, nil
}

func authorize(o options.CompletedOptions, g *genericapiserver.Config, f informers.SharedInformerFactory) error {
	authorizer, rules, rbac, err := controlplaneapiserver.BuildAuthorizer(wait.ContextForChannel(g.DrainedNotify()), o.CompletedOptions, g.EgressSelector, g.APIServerID, f)
	if err != nil {
		return err
	}
	g.Authorization.Authorizer, g.RuleResolver = authorizer, rules
	if !rbac {
		g.DisabledPostStartHooks.Insert(rbacrest.PostStartHookName, kubeletHook)
	}
	return nil
}
