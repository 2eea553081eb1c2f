// Package kubelet runs the kubelet in the process.
//
// It promises: the API is reached in process as the node's own user, so that Node authorization and NodeRestriction hold;
// the kubelet's own port answers authenticated and authorized callers only; and the component is ready when the Node is.
// The kubelet cannot be ended without ending the process: after Run has returned some of its loops go on until exit.
package kubelet

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/kubeletconfig/configfiles"
	utilfs "k8s.io/kubernetes/pkg/util/filesystem"

	"github.com/clusterd/clusterd/agent/resolvconf"
	"github.com/clusterd/clusterd/internal/upstream"
)

// Config is what the kubelet is made from. All fields are required unless marked optional.
type Config struct {
	NodeName      string
	NodeIPs       []netip.Addr
	Labels        map[string]string // optional
	Taints        []v1.Taint        // optional
	RootDir       string
	PodLogsDir    string
	CertDir       string
	VolumePlugins string // FlexVolume drivers
	Socket        string // containerd's, for CRI
	ManifestPath  string // static pods: a directory or a file
	ManifestURL   string // optional: static pods over HTTP
	ClusterDNS    []netip.Addr
	ClusterDomain string
	ResolvConf    string // the file that is kept with the host's real resolvers
	HostResolvers string // the file they are taken from; optional: wherever the host has them
	ClientCA      string // PEM file: signs the certificates of callers
	Cert, Key     string // PEM files: serving
	Args          []string
	RESTConfig    *rest.Config // acts as the node
	// Wait, if not nil, is closed when the kubelet may be made; see the package comment of controllers.
	Wait <-chan struct{}
	// NodeReady blocks until the Node is Ready.
	NodeReady func(ctx context.Context) error
}

const argFlag = "kubelet-arg"

// Kubelet is the component.
type Kubelet struct {
	cfg    Config
	server *options.KubeletServer
	log    *slog.Logger
}

// New makes a kubelet. It reads the KubeletConfiguration that Args may name (config=FILE), but for its feature gates,
// which have to be among the process's already. Its error names every mistake.
func New(cfg Config, log *slog.Logger) (*Kubelet, error) {
	s, err := options.NewKubeletServer()
	if err != nil {
		return nil, fmt.Errorf("default the kubelet's options: %w", err)
	}
	prefer(&s.KubeletConfiguration, cfg)
	args, err := fromFile(s, cfg.Args)
	if err != nil {
		return nil, err
	}
	require(s, cfg)
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.AddFlags(fs)
	if err := upstream.Parse(fs, argFlag, nil, args); err != nil {
		return nil, err
	}
	if err := options.ValidateKubeletServer(s); err != nil {
		return nil, fmt.Errorf("--%s: %w", argFlag, err)
	}
	return &Kubelet{cfg: cfg, server: s, log: log}, nil
}

// fromFile loads the configuration file that the user's arguments name and returns the arguments without it.
func fromFile(s *options.KubeletServer, args []string) (rest []string, err error) {
	for _, a := range args {
		key, path, _ := strings.Cut(strings.TrimPrefix(a, "--"), "=")
		if key != "config" {
			rest = append(rest, a)
			continue
		}
		loader, err := configfiles.NewFsLoader(&utilfs.DefaultFs{}, path)
		if err != nil {
			return nil, fmt.Errorf("--%s %s: %w", argFlag, a, err)
		}
		c, err := loader.Load(context.Background())
		if err != nil {
			return nil, fmt.Errorf("--%s %s: %w", argFlag, a, err)
		}
		s.KubeletConfiguration = *c
		s.FeatureGates = nil // or the kubelet would set them when it starts, for all components
	}
	return rest, nil
}

// prefer sets what we choose differently from upstream and a user's configuration file may choose again.
func prefer(c *kubeletconfig.KubeletConfiguration, cfg Config) {
	c.SerializeImagePulls = false
	// A small disk is not full at 10 % free; upstream's figures are for the disks of cloud machines.
	c.EvictionHard = map[string]string{"memory.available": "100Mi", "imagefs.available": "5%", "nodefs.available": "5%", "nodefs.inodesFree": "5%"}
	c.EvictionMinimumReclaim = map[string]string{"imagefs.available": "10%", "nodefs.available": "10%"}
	c.FailSwapOn = false
	c.VolumePluginDir = cfg.VolumePlugins
}

// require sets what makes the kubelet part of this node; a configuration file does not change it.
func require(s *options.KubeletServer, cfg Config) {
	s.KubeConfig = "in-process" // not empty: not standalone; the clients are given
	s.HostnameOverride = cfg.NodeName
	s.NodeIP = upstream.Join(cfg.NodeIPs)
	for k, v := range cfg.Labels {
		s.NodeLabels[k] = v
	}
	s.RootDirectory = cfg.RootDir
	s.CertDirectory = cfg.CertDir

	c := &s.KubeletConfiguration
	c.Authentication.Anonymous.Enabled = false
	c.Authentication.Webhook.Enabled = true
	c.Authentication.X509.ClientCAFile = cfg.ClientCA
	c.Authorization.Mode = kubeletconfig.KubeletAuthorizationModeWebhook
	c.ReadOnlyPort = 0
	c.HealthzPort = 0
	c.TLSCertFile, c.TLSPrivateKeyFile = cfg.Cert, cfg.Key
	c.ContainerRuntimeEndpoint = "unix://" + cfg.Socket
	c.PodLogsDir = cfg.PodLogsDir
	c.StaticPodPath, c.StaticPodURL = cfg.ManifestPath, cfg.ManifestURL
	c.RegisterWithTaints = cfg.Taints
	c.ClusterDomain = cfg.ClusterDomain
	c.ClusterDNS = nil
	for _, a := range cfg.ClusterDNS {
		c.ClusterDNS = append(c.ClusterDNS, a.String())
	}
	c.ResolverConfig = cfg.ResolvConf
	c.FailCgroupV1 = false
}

// Name is the component's name.
func (k *Kubelet) Name() string { return "kubelet" }

// Run runs the kubelet until ctx ends. It is ready when the Node is Ready.
func (k *Kubelet) Run(ctx context.Context, ready func()) error {
	if k.cfg.Wait != nil {
		select {
		case <-k.cfg.Wait:
		case <-ctx.Done():
			return nil
		}
	}
	if err := removeEmptied(k.cfg.RootDir, k.log); err != nil {
		return err
	}
	if err := resolvconf.Keep(ctx, k.cfg.ResolvConf, k.cfg.HostResolvers, k.log); err != nil {
		return err
	}
	deps, err := app.UnsecuredDependencies(ctx, k.server, utilfeature.DefaultFeatureGate)
	if err != nil {
		return fmt.Errorf("make the kubelet's dependencies: %w", err)
	}
	if deps.CAdvisorInterface, err = newStats(ctx, k.server); err != nil {
		return err
	}
	client, err := clientset.NewForConfig(k.cfg.RESTConfig)
	if err != nil {
		return fmt.Errorf("make the kubelet's client: %w", err)
	}
	heartbeat := rest.CopyConfig(k.cfg.RESTConfig)
	heartbeat.Timeout = heartbeatTimeout
	if deps.HeartbeatClient, err = clientset.NewForConfig(heartbeat); err != nil {
		return fmt.Errorf("make the kubelet's heartbeat client: %w", err)
	}
	deps.KubeClient, deps.EventClient = client, client.CoreV1()
	if err := announceStart(ctx, client, k.cfg.NodeName); err != nil && !apierrors.IsNotFound(err) {
		k.log.Debug("start not announced", "error", err) // the Node becomes Ready later, that is all
	}
	done := make(chan error, 1)
	go func() { done <- app.Run(ctx, k.server, deps, utilfeature.DefaultFeatureGate) }()
	go func() {
		if k.cfg.NodeReady(ctx) == nil {
			ready()
		}
	}()
	return <-done
}

// heartbeatTimeout is how long one renewal of the node's lease may take: as upstream, the period of status updates.
const heartbeatTimeout = 10 * time.Second
