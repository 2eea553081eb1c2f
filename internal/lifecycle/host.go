package lifecycle

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// host is what one call of Run shares with everything that runs under it.
type host struct {
	begin       time.Time
	stopTimeout time.Duration
	log         *slog.Logger

	mu    sync.Mutex // serialises ready
	ready func(name string, elapsed time.Duration)
}

func newHost(o Options) *host {
	h := &host{begin: time.Now(), stopTimeout: o.StopTimeout, log: o.Log, ready: o.Ready}
	if h.stopTimeout <= 0 {
		h.stopTimeout = DefaultStopTimeout
	}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	return h
}

// report tells the user of Run that a component is ready.
func (h *host) report(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	elapsed := time.Since(h.begin)
	h.log.Debug("component ready", "component", name, "elapsed", elapsed)
	if h.ready != nil {
		h.ready(name, elapsed)
	}
}

type (
	hostKey  struct{}
	childKey struct{}
)

func withHost(ctx context.Context, h *host) context.Context {
	// A Run inside a component starts a tree of its own.
	ctx = context.WithValue(ctx, childKey{}, (*child)(nil))
	return context.WithValue(ctx, hostKey{}, h)
}

// hostFrom returns the host of the Run that ctx comes from, or a silent one for
// a combinator that is run by hand.
func hostFrom(ctx context.Context) *host {
	if h, ok := ctx.Value(hostKey{}).(*host); ok {
		return h
	}
	return newHost(Options{})
}

// parentFrom returns the component under which ctx runs, nil for none.
func parentFrom(ctx context.Context) *child {
	c, _ := ctx.Value(childKey{}).(*child)
	return c
}
