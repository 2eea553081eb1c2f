// Package election runs on one server of a cluster what may run only once in it.
//
// It promises that what it runs is made and started when this server gets the lease, has ended before the lease is given up,
// and is made anew the next time; and that losing the lease, as when the datastore does not answer, is no failure. What runs
// is cut off from a lease that cannot be renewed before another server can get it.
//
// Why here and not as upstream does it: upstream ends the process when a lease is lost. In this process there are an API
// server and a node, too.
package election

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/clusterd/clusterd/internal/lifecycle"
)

// Config is what the component is made from. All fields are required.
type Config struct {
	// RESTConfig may write the lease.
	RESTConfig *rest.Config
	// Namespace and Lease name it.
	Namespace, Lease string
	// Upstream's: a lease is free LeaseDuration after it was renewed last; who has it and cannot renew it for RenewDeadline
	// gives up; RetryPeriod is between tries of either.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// Identity is this server's. It is the same after a restart, so that a server that comes back need not wait for its own
	// lease to end.
	Identity func() (string, error)
	// Make makes what runs while this server has the lease, anew each time.
	Make func() (lifecycle.Component, error)
	// Elsewhere is called when another server has the lease.
	Elsewhere func()
}

// Election is the component.
type Election struct {
	cfg Config
	log *slog.Logger
}

// New makes the component. It does no I/O.
func New(cfg Config, log *slog.Logger) *Election { return &Election{cfg: cfg, log: log} }

// Name is the component's name.
func (e *Election) Name() string { return "election" }

// Run takes part until ctx ends. It is ready when what this server runs is, or when another server has the lease.
func (e *Election) Run(ctx context.Context, ready func()) error {
	id, err := e.cfg.Identity()
	if err != nil {
		return err
	}
	conf := rest.CopyConfig(e.cfg.RESTConfig)
	conf.Timeout = e.cfg.RenewDeadline / 2 // one that hangs must not be the last try
	client, err := clientset.NewForConfig(conf)
	if err != nil {
		return fmt.Errorf("make the client for the election: %w", err)
	}
	ready = sync.OnceFunc(ready)
	for ctx.Err() == nil {
		if err := e.term(ctx, client, id, ready); err != nil {
			return err
		}
	}
	return nil
}

// term takes part until this server has had the lease and has it no more, or ctx ends.
func (e *Election) term(ctx context.Context, client clientset.Interface, id string, ready func()) error {
	lease, give := context.WithCancel(context.WithoutCancel(ctx))
	defer give()
	var leads atomic.Bool
	ended := make(chan error, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: e.cfg.Namespace, Name: e.cfg.Lease},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: id},
		},
		LeaseDuration: e.cfg.LeaseDuration, RenewDeadline: e.cfg.RenewDeadline, RetryPeriod: e.cfg.RetryPeriod,
		ReleaseOnCancel: true, Name: e.cfg.Lease,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(held context.Context) {
				leads.Store(true)
				defer give() // nothing runs any more that needs the lease
				ended <- e.lead(ctx, held, ready)
			},
			OnStoppedLeading: func() {},
			OnNewLeader: func(who string) {
				if who != "" && who != id {
					e.log.Info("the controllers and the scheduler run on another server", "server", who)
					e.cfg.Elsewhere()
					ready()
				}
			},
		},
	})
	if err != nil {
		return fmt.Errorf("take part in the election: %w", err)
	}
	// Who leads gives the lease up when what it runs has ended, anybody else at once.
	unhook := context.AfterFunc(ctx, func() {
		if !leads.Load() {
			give()
		}
	})
	defer unhook()
	elector.Run(lease)
	if ctx.Err() != nil && !leads.Load() {
		return nil // if it has got the lease in this moment, nothing is made any more
	}
	return <-ended
}

// lead runs what there is to run while the lease is held and ctx has not ended.
func (e *Election) lead(ctx, held context.Context, ready func()) error {
	run, stop := context.WithCancel(held)
	defer stop()
	unhook := context.AfterFunc(ctx, stop)
	defer unhook()
	if ctx.Err() != nil || held.Err() != nil {
		return nil
	}
	c, err := e.cfg.Make()
	if err != nil {
		return err
	}
	e.log.Info("the controllers and the scheduler run on this server")
	err = c.Run(run, ready)
	if err == nil && ctx.Err() == nil {
		e.log.Warn("the controllers and the scheduler do not run on this server any more: its lease could not be renewed")
	}
	return err
}
