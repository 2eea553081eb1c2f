// Package lifecycle starts, watches and stops the long-running parts of a node.
//
// It promises that parts start in the order in which the code lists them, stop
// in reverse, that the first one to end early stops all the others, that the
// error then returned names it, and that neither a panic nor a part that
// ignores its context can hang the process: [Run] always returns.
//
// Why one blocking method and not Init, Start and Stop: with start-and-return, a
// crash after the start is invisible to whoever started the part. Here the
// return of Run is the crash report. Why no restarts: much of what runs in the
// process (flags, metrics, signal handling of upstream Kubernetes) exists once a
// process, so the only honest restart is a new process.
//
// The package uses only the standard library.
package lifecycle

import (
	"context"
	"log/slog"
	"time"
)

// DefaultStopTimeout is how long a component may take to end when
// Options.StopTimeout is zero.
const DefaultStopTimeout = 5 * time.Second

// Component is one long-running part of a node.
type Component interface {
	// Name is its log attribute and error prefix. It never changes.
	Name() string
	// Run owns the whole life on the calling goroutine. It calls ready once,
	// when the component can serve, and blocks. It returns nil only after ctx
	// is done and all it started has ended; any earlier return fails the node.
	// ready may be called from any goroutine; only the first call counts.
	Run(ctx context.Context, ready func()) error
}

// Options says how [Run] reports and how long it waits. The zero value is valid.
type Options struct {
	// Ready, when not nil, is called with the time since Run began for each
	// leaf that becomes ready (a leaf is a component that runs no others under
	// its context) and then once for the root. Calls never overlap.
	Ready func(name string, elapsed time.Duration)
	// StopTimeout bounds the stop of each leaf, counted from the moment its own
	// context ends. Zero means DefaultStopTimeout. A leaf that misses it is
	// logged, named in the returned error and left behind.
	StopTimeout time.Duration
	// Log gets missed stop deadlines (error), and stacks of panics, ready times
	// and stop times (debug). Nil discards.
	Log *slog.Logger
}

// Run runs root until ctx ends or root does, and returns when everything that
// root started has ended or missed its stop deadline. It returns nil only for a
// clean stop: ctx ended first, and every component then returned in time.
func Run(ctx context.Context, root Component, o Options) error {
	s := newSet(withHost(ctx, newHost(o)))
	top := s.start(root)
	select {
	case <-ctx.Done():
	case <-s.ended:
	}
	return top.stop()
}
