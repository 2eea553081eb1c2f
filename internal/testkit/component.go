// Package testkit is what tests of several packages share.
//
// It is imported by tests only, and reports through the testing package: a
// helper that can fail takes the test and fails it.
package testkit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clusterd/clusterd/internal/lifecycle"
)

// ComponentOption changes what [Component] demands.
type ComponentOption func(*contract)

// StartTimeout is how long a component may take to become ready, 30 s by default.
func StartTimeout(d time.Duration) ComponentOption {
	return func(c *contract) { c.start = d }
}

// StopTimeout is how long a component may take to return, 10 s by default.
func StopTimeout(d time.Duration) ComponentOption {
	return func(c *contract) { c.stop = d }
}

// MayLeak excuses goroutines whose stack contains text, for libraries that start
// some which live as long as the process.
func MayLeak(text string) ComponentOption {
	return func(c *contract) { c.excused = append(c.excused, text) }
}

// contract is what Component checks, each part of it on a fresh component.
type contract struct {
	start, stop time.Duration
	excused     []string
}

// Component checks that what newComponent makes keeps the contract of
// [lifecycle.Component]: it has a name that stays, becomes ready at most once
// and stays up, and ends in time, cleanly and without leaving a goroutine when
// its context ends: after it was ready, in the middle of its start, and before.
//
// newComponent is called for each of these, and has to give what can run beside
// the remains of the ones before: a directory of its own, say. The test must not
// be parallel to others, or their goroutines are taken for leaks.
func Component(t *testing.T, newComponent func(t *testing.T) lifecycle.Component, options ...ComponentOption) {
	t.Helper()
	k := contract{start: 30 * time.Second, stop: 10 * time.Second}
	for _, o := range options {
		o(&k)
	}
	for _, part := range []struct {
		name  string
		check func(context.Context, lifecycle.Component) error
	}{
		{"runs and stops", k.runs},
		{"stops while it starts", k.interrupted},
		{"stops before it starts", k.stillborn},
	} {
		t.Run(part.name, func(t *testing.T) {
			c := newComponent(t)
			if err := k.tidy(c, func() error { return part.check(t.Context(), c) }); err != nil {
				t.Error(err)
			}
		})
	}
}

// tidy runs check and then looks at what c should not have changed.
func (k contract) tidy(c lifecycle.Component, check func() error) error {
	name, before := c.Name(), goroutines()
	if name == "" {
		return errors.New("the component has no name")
	}
	if err := check(); err != nil {
		return err
	}
	if after := c.Name(); after != name {
		return fmt.Errorf("the component was called %q and is now %q", name, after)
	}
	return k.leaked(before)
}

// runs lets the component become ready, and stops it.
func (k contract) runs(ctx context.Context, c lifecycle.Component) error {
	r := begin(ctx, c)
	defer r.cancel()
	select {
	case <-r.ready:
	case err := <-r.done:
		return fmt.Errorf("ended before it was ready: %w", orEarly(err))
	case <-time.After(k.start):
		return fmt.Errorf("not ready within %s", k.start)
	}
	select {
	case err := <-r.done:
		return fmt.Errorf("ended without being asked to: %w", orEarly(err))
	case <-time.After(100 * time.Millisecond): // long enough for one that does not block at all
	}
	return k.end(r)
}

// interrupted stops the component shortly after it began to start.
func (k contract) interrupted(ctx context.Context, c lifecycle.Component) error {
	r := begin(ctx, c)
	defer r.cancel()
	select {
	case <-r.ready:
	case err := <-r.done:
		return fmt.Errorf("ended before it was ready: %w", orEarly(err))
	case <-time.After(5 * time.Millisecond):
	}
	return k.end(r)
}

// stillborn runs the component under a context that has already ended.
func (k contract) stillborn(ctx context.Context, c lifecycle.Component) error {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return k.end(begin(ctx, c))
}

// end stops the component and checks how it ended.
func (k contract) end(r *run) error {
	r.cancel()
	select {
	case err := <-r.done:
		if err != nil && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("stop: %w", err)
		}
	case <-time.After(k.stop):
		return fmt.Errorf("did not stop within %s", k.stop)
	}
	if n := r.calls.Load(); n > 1 {
		return fmt.Errorf("called ready %d times", n)
	}
	return nil
}

// run is one running component.
type run struct {
	cancel context.CancelFunc
	ready  chan struct{} // closed at the first call of ready
	done   chan error    // gets what Run returned
	calls  atomic.Int32
}

func begin(ctx context.Context, c lifecycle.Component) *run {
	ctx, cancel := context.WithCancel(ctx)
	r := &run{cancel: cancel, ready: make(chan struct{}), done: make(chan error, 1)}
	go func() {
		r.done <- c.Run(ctx, func() {
			if r.calls.Add(1) == 1 {
				close(r.ready)
			}
		})
	}()
	return r
}

// orEarly gives the nil of a component that ended too early a text.
func orEarly(err error) error {
	if err == nil {
		return errors.New("it returned nil")
	}
	return err
}
