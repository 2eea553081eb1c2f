// Package scheduler runs kube-scheduler's framework in the process, with upstream's default plugins or the profiles of the
// user's KubeSchedulerConfiguration.
//
// It promises: a configuration file that is read and validated before anything starts; no leader election of its own and no
// listener.
package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/scheduler"
	kubeconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	configscheme "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"

	"github.com/clusterd/clusterd/internal/inproc"
	"github.com/clusterd/clusterd/internal/upstream"
)

// Config is what the scheduler is made from.
type Config struct {
	ConfigFile string   // optional: a KubeSchedulerConfiguration, YAML or JSON
	Args       []string // optional: the user's key=value flags for kube-scheduler
	Transport  *inproc.Transport
}

const argFlag = "kube-scheduler-arg"

// Scheduler is the component.
type Scheduler struct {
	cfg           Config
	component     *kubeconfig.KubeSchedulerConfiguration
	unschedulable time.Duration // how long a pod stays unschedulable before it is tried again without a cause
	log           *slog.Logger
}

// New makes a scheduler. It reads the configuration file; its error names every mistake in the file and in Args.
func New(cfg Config, log *slog.Logger) (*Scheduler, error) {
	o := options.NewOptions()
	if err := upstream.Parse(upstream.Merge(*o.Flags), argFlag, nil, cfg.Args); err != nil {
		return nil, err
	}
	if err := refuse(cfg); err != nil {
		return nil, err
	}
	if cfg.ConfigFile == "" {
		cfg.ConfigFile = o.ConfigFile
	}
	c, err := load(cfg.ConfigFile)
	if err != nil {
		return nil, err
	}
	if err := validation.ValidateKubeSchedulerConfiguration(c); err != nil {
		return nil, fmt.Errorf("--kube-scheduler-config %s: %w", cfg.ConfigFile, err)
	}
	return &Scheduler{cfg: cfg, component: c, unschedulable: o.Deprecated.PodMaxInUnschedulablePodsDuration, log: log}, nil
}

// refuse names the flags that would be without effect: what they set is in the configuration file, or is not there at all.
func refuse(cfg Config) error {
	var errs []error
	for _, a := range cfg.Args {
		switch key, _, _ := strings.Cut(strings.TrimPrefix(a, "--"), "="); {
		case key == "config" && cfg.ConfigFile != "":
			errs = append(errs, fmt.Errorf("--%s %s: the configuration is given by --kube-scheduler-config already", argFlag, a))
		case key != "config" && key != "pod-max-in-unschedulable-pods-duration":
			errs = append(errs, fmt.Errorf("--%s %s: has no effect here; set it in the file of --kube-scheduler-config if it is there", argFlag, a))
		}
	}
	return errors.Join(errs...)
}

// load reads the configuration from path, or makes the default one when path is empty.
func load(path string) (*kubeconfig.KubeSchedulerConfiguration, error) {
	c, err := latest.Default()
	if err != nil {
		return nil, fmt.Errorf("default the scheduler's configuration: %w", err)
	}
	if path != "" {
		if c, err = decode(path); err != nil {
			return nil, err
		}
	}
	c.LeaderElection.LeaderElect = false
	return c, nil
}

func decode(path string) (*kubeconfig.KubeSchedulerConfiguration, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read --kube-scheduler-config: %w", err)
	}
	o, kind, err := configscheme.Codecs.UniversalDecoder().Decode(b, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("--kube-scheduler-config %s: %w", path, err)
	}
	c, ok := o.(*kubeconfig.KubeSchedulerConfiguration)
	if !ok {
		return nil, fmt.Errorf("--kube-scheduler-config %s: want a KubeSchedulerConfiguration, got %s", path, kind.Kind)
	}
	// Validation and plugin defaulting look at the version that the file was written in.
	c.APIVersion = kind.GroupVersion().String()
	return c, nil
}

// Name is the component's name.
func (s *Scheduler) Name() string { return "scheduler" }

// Run schedules until ctx ends. It is ready when its caches are filled.
func (s *Scheduler) Run(ctx context.Context, ready func()) error {
	conf := s.cfg.Transport.Config(inproc.User("system:kube-scheduler"), "kube-scheduler")
	client, err := clientset.NewForConfig(conf)
	if err != nil {
		return fmt.Errorf("make the scheduler's client: %w", err)
	}
	dyn, err := dynamic.NewForConfig(conf)
	if err != nil {
		return fmt.Errorf("make the scheduler's dynamic client: %w", err)
	}
	broadcaster := events.NewEventBroadcasterAdapterWithContext(ctx, client)
	typed := scheduler.NewInformerFactory(client, 0, nil)
	dynamics := dynamicinformer.NewFilteredDynamicSharedInformerFactory(dyn, 0, "", nil)
	c := s.component
	sched, err := scheduler.New(ctx, client, typed, dynamics,
		func(name string) events.EventRecorderLogger { return broadcaster.NewRecorder(name) },
		scheduler.WithComponentConfigVersion(c.APIVersion),
		scheduler.WithKubeConfig(conf),
		scheduler.WithProfiles(c.Profiles...),
		scheduler.WithPercentageOfNodesToScore(c.PercentageOfNodesToScore),
		scheduler.WithPodMaxBackoffSeconds(c.PodMaxBackoffSeconds),
		scheduler.WithPodInitialBackoffSeconds(c.PodInitialBackoffSeconds),
		scheduler.WithPodMaxInUnschedulablePodsDuration(s.unschedulable),
		scheduler.WithExtenders(c.Extenders...),
		scheduler.WithParallelism(c.Parallelism),
	)
	if err != nil {
		return fmt.Errorf("make the scheduler: %w", err)
	}
	broadcaster.StartRecordingToSink(ctx.Done())
	defer broadcaster.Shutdown()
	typed.Start(ctx.Done())
	dynamics.Start(ctx.Done())
	typed.WaitForCacheSync(ctx.Done())
	dynamics.WaitForCacheSync(ctx.Done())
	if err := sched.WaitForHandlersSync(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("fill the scheduler's caches: %w", err)
	}
	if ctx.Err() == nil {
		ready()
		sched.Run(ctx)
	}
	return nil
}
