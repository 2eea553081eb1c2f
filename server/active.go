package server

import (
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"time"

	"github.com/clusterd/clusterd/internal/config"
	"github.com/clusterd/clusterd/internal/lifecycle"
	"github.com/clusterd/clusterd/internal/upstream"
	"github.com/clusterd/clusterd/server/controllers"
	"github.com/clusterd/clusterd/server/election"
	"github.com/clusterd/clusterd/server/scheduler"
)

// settling is for how long controllers that begin may complain of what they do not find yet.
const settling = 20 * time.Second

// active is what may run on one server of a cluster only: the controllers and the scheduler.
type active struct {
	cfg   Config
	d     Deps
	built chan struct{} // closed when a kubelet may be made
	close func()
}

func newActive(cfg Config, d Deps) *active {
	a := &active{cfg: cfg, d: d, built: make(chan struct{})}
	a.close = sync.OnceFunc(func() { close(a.built) })
	return a
}

func schedulerConfig(cfg Config, d Deps) scheduler.Config {
	return scheduler.Config{ConfigFile: cfg.SchedulerConfig, Args: cfg.SchedulerArgs, Transport: d.Transport}
}

// components makes both, each time anew: upstream's controllers run once.
func (a *active) components() (*controllers.Controllers, *scheduler.Scheduler, error) {
	c := controllersConfig(a.cfg, a.d)
	c.KubeletFirst = a.kubeletFirst()
	ctl, err1 := controllers.New(c, a.d.Log)
	sched, err2 := scheduler.New(schedulerConfig(a.cfg, a.d), a.d.Log)
	return ctl, sched, config.Join(err1, err2)
}

// kubeletFirst is whether a kubelet is made, or being made, before the controllers.
func (a *active) kubeletFirst() bool {
	select {
	case <-a.built:
		return !a.cfg.DisableAgent
	default:
		return false
	}
}

// elected runs them by turns with other servers, by a lease that the first ones describe.
func (a *active) elected(first *controllers.Controllers) lifecycle.Component {
	how := first.LeaderElection()
	return election.New(election.Config{
		RESTConfig: a.d.Transport.Config(Admin(), "clusterd/election"),
		Namespace:  how.ResourceNamespace, Lease: how.ResourceName,
		LeaseDuration: how.LeaseDuration.Duration, RenewDeadline: how.RenewDeadline.Duration, RetryPeriod: how.RetryPeriod.Duration,
		Identity:  func() (string, error) { return identity(a.cfg, a.d) },
		Make:      a.together,
		Elsewhere: a.close,
	}, a.d.Log)
}

func (a *active) together() (lifecycle.Component, error) {
	ctl, sched, err := a.components()
	if err != nil {
		return nil, err
	}
	upstream.Settle(settling)
	go func() {
		<-ctl.Built()
		a.close()
	}()
	return lifecycle.Parallel("active", ctl, sched), nil
}

// identity is this server's among the others: its name, and behind it what makes it another one than a machine of the same
// name.
func identity(cfg Config, d Deps) (string, error) {
	print, err := fingerprint(d)
	if err != nil {
		return "", err
	}
	return cfg.NodeName + "_" + print[:12], nil
}

// fingerprint is that of a key which this server alone has, and keeps.
func fingerprint(d Deps) (string, error) {
	_, key, err := d.PKI.Read(servingAPI)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:]), nil
}
