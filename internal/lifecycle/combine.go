package lifecycle

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// component is a named function with the contract of Component.Run.
type component struct {
	name string
	run  func(ctx context.Context, ready func()) error
}

func (c *component) Name() string { return c.name }

func (c *component) Run(ctx context.Context, ready func()) error { return c.run(ctx, ready) }

// Func makes a component of a function that keeps the contract of Component.Run.
func Func(name string, run func(ctx context.Context, ready func()) error) Component {
	return &component{name: name, run: run}
}

// Task is ready when f succeeds, and then idle until its context ends. An error
// of f is the component's. f has to return soon after its context ends.
func Task(name string, f func(context.Context) error) Component {
	return Func(name, func(ctx context.Context, ready func()) error {
		if err := f(ctx); err != nil {
			return err
		}
		ready()
		<-ctx.Done()
		return nil
	})
}

// Sequence starts each component when the previous one is ready, is ready when
// the last one is, and stops them in reverse, each when the next one has ended.
// It ends early, stopping the rest in the same way, when one of them does.
func Sequence(name string, c ...Component) Component {
	return Func(name, func(ctx context.Context, ready func()) error {
		s := newSet(ctx)
		var running []*child
		for _, next := range c {
			if ctx.Err() != nil { // it may have ended while the one before became ready
				return stopReverse(running)
			}
			k := s.start(next)
			running = append(running, k)
			if !s.await(k) {
				return stopReverse(running)
			}
		}
		ready()
		s.wait()
		return stopReverse(running)
	})
}

// Parallel starts all components at once, is ready when all are, and stops them
// all at once. It ends early, stopping the rest, when one of them does.
func Parallel(name string, c ...Component) Component {
	return Func(name, func(ctx context.Context, ready func()) error {
		s := newSet(ctx)
		running := make([]*child, len(c))
		for i, next := range c {
			running[i] = s.start(next)
		}
		for _, k := range running {
			if !s.await(k) {
				return stopAll(running)
			}
		}
		ready()
		s.wait()
		return stopAll(running)
	})
}

// await returns true when k is ready, false when the set has to stop first.
func (s *set) await(k *child) bool {
	select {
	case <-k.isReady:
		return true
	case <-s.ended:
	case <-s.ctx.Done():
	}
	return false
}

// wait returns when the set has to stop.
func (s *set) wait() {
	select {
	case <-s.ended:
	case <-s.ctx.Done():
	}
}

// early splits off the components that have ended before they were stopped.
// Their errors are the cause, and come first in what the user reads.
func early(running []*child) (errs []error, rest []*child) {
	for _, k := range running {
		select {
		case <-k.done:
			errs = append(errs, k.err)
		default:
			rest = append(rest, k)
		}
	}
	return errs, rest
}

func stopReverse(running []*child) error {
	errs, rest := early(running)
	for _, k := range slices.Backward(rest) {
		errs = append(errs, k.stop())
	}
	return join(errs)
}

func stopAll(running []*child) error {
	errs, rest := early(running)
	stopped := make([]error, len(rest))
	var wg sync.WaitGroup
	for i, k := range rest {
		wg.Go(func() { stopped[i] = k.stop() })
	}
	wg.Wait()
	return join(append(errs, stopped...))
}

// join is errors.Join without a wrapper around a single error.
func join(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}
