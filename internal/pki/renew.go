package pki

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/clusterd/clusterd/internal/lifecycle"
)

var _ lifecycle.Component = (*Renewer)(nil)

// DefaultInterval is how often leaves are checked unless the caller says
// otherwise: often enough for a clock that was wrong and of which nobody has told
// by Kick, rare enough to cost nothing.
const DefaultInterval = time.Hour

// Renewer is the component that keeps leaves valid. It is ready when all are.
type Renewer struct {
	pki      *PKI
	name     string
	interval time.Duration
	leaves   func() ([]Leaf, error)
	changed  func(name string)
	kick     chan struct{}
}

// Renewer makes a component called name that ensures what leaves returns: once
// at the start, where an error fails it, then at each interval and each Kick,
// where an error is logged and tried again. changed, unless nil, is called with
// the name of each leaf that was written, on the component's goroutine. An
// interval of zero means DefaultInterval.
func (p *PKI) Renewer(name string, interval time.Duration, leaves func() ([]Leaf, error), changed func(name string)) *Renewer {
	if interval <= 0 {
		interval = DefaultInterval
	}
	return &Renewer{pki: p, name: name, interval: interval, leaves: leaves, changed: changed, kick: make(chan struct{}, 1)}
}

// Name implements lifecycle.Component.
func (r *Renewer) Name() string { return r.name }

// Kick makes a running Renewer check now, for instance because an address or the
// clock has changed. It never blocks.
func (r *Renewer) Kick() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// Run implements lifecycle.Component.
func (r *Renewer) Run(ctx context.Context, ready func()) error {
	if err := r.ensure(ctx); err != nil {
		return err
	}
	if ctx.Err() != nil { // the leaves are not all there
		return nil
	}
	ready()
	ticker := time.NewTicker(r.interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.kick:
		case <-ticker.C:
		}
		if err := r.ensure(ctx); err != nil {
			r.pki.log.Warn("certificates not renewed", "component", r.name, "error", err, "retry", r.interval)
		}
	}
}

// ensure checks every leaf. One that cannot be written does not keep the others
// from being so.
func (r *Renewer) ensure(ctx context.Context) error {
	leaves, err := r.leaves()
	if err != nil {
		return fmt.Errorf("list certificates: %w", err)
	}
	var errs []error
	for _, l := range leaves {
		if ctx.Err() != nil {
			break
		}
		changed, err := r.pki.Ensure(l)
		errs = append(errs, err)
		if changed && err == nil && r.changed != nil {
			r.changed(l.Name)
		}
	}
	return errors.Join(errs...)
}
