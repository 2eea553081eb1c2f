package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// errEarly is the cause when a component returns nil though nobody stopped it.
var errEarly = errors.New("ended without being asked to")

// errGoexit is the cause when a component leaves its goroutine by runtime.Goexit.
var errGoexit = errors.New("left its goroutine")

// namedError is the error of one component. Only the innermost component puts
// its name in front, so that a chain reads "apiserver: listen: …" however deep
// the component is nested.
type namedError struct {
	name string
	err  error
}

func (e *namedError) Error() string { return e.name + ": " + e.err.Error() }
func (e *namedError) Unwrap() error { return e.err }

func named(name string, err error) error {
	var inner *namedError
	if err == nil || errors.As(err, &inner) {
		return err
	}
	return &namedError{name: name, err: err}
}

// set is the children of one component, all started by one goroutine.
type set struct {
	ctx    context.Context
	host   *host
	parent *child
	ended  chan struct{} // gets a value when a child ends; capacity 1
}

func newSet(ctx context.Context) *set {
	return &set{ctx: ctx, host: hostFrom(ctx), parent: parentFrom(ctx), ended: make(chan struct{}, 1)}
}

// child is one running component.
type child struct {
	set     *set
	name    string
	cancel  context.CancelFunc
	isReady chan struct{} // closed when ready
	done    chan struct{} // closed when Run has returned; err is then valid
	err     error
	group   atomic.Bool   // it runs other components
	beat    chan struct{} // gets a value when something under it ends; capacity 1
}

// start runs c on a goroutine of its own. Its context carries the values of the
// set's but not its end: the set decides when each child stops.
func (s *set) start(c Component) *child {
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.ctx))
	k := &child{
		set: s, name: c.Name(), cancel: cancel,
		isReady: make(chan struct{}), done: make(chan struct{}), beat: make(chan struct{}, 1),
	}
	if s.parent != nil {
		s.parent.group.Store(true)
	}
	ctx = context.WithValue(ctx, childKey{}, k)
	go k.run(ctx, c)
	return k
}

// run is the child's goroutine.
func (k *child) run(ctx context.Context, c Component) {
	err := errGoexit
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
			k.set.host.log.Debug("component panicked", "component", k.name, "panic", p, "stack", string(debug.Stack()))
		}
		k.finish(ctx, err)
	}()
	err = c.Run(ctx, sync.OnceFunc(func() { k.ready(ctx) }))
}

// finish records how the component ended and wakes whoever waits for it.
func (k *child) finish(ctx context.Context, err error) {
	switch stopping := ctx.Err() != nil; {
	case stopping && errors.Is(err, context.Canceled):
		err = nil // a component may answer its stop with the reason for it
	case !stopping && err == nil:
		err = errEarly
	}
	k.err = named(k.name, err)
	k.cancel()
	close(k.done)
	signal(k.set.ended)
}

// ready marks the component ready and reports it if it is a leaf or the root.
// Once it is being stopped or has ended, nobody wants to hear of it.
func (k *child) ready(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	if !k.group.Load() || k.set.parent == nil {
		k.set.host.report(k.name)
	}
	close(k.isReady)
}

// stop ends the component and returns its error once it has ended or missed its
// deadline. What runs under it gets its own deadlines, so a group is only given
// up when nothing under it has ended for longer than one of those.
func (k *child) stop() error {
	begin := time.Now()
	k.cancel()
	timer := time.NewTimer(k.patience())
	defer timer.Stop()
	for {
		select {
		case <-k.done:
			k.set.host.log.Debug("component stopped", "component", k.name, "took", time.Since(begin))
			k.set.beat()
			return k.err
		case <-k.beat:
			k.set.beat()
			timer.Reset(k.patience())
		case <-timer.C:
			k.set.beat()
			return k.abandon()
		}
	}
}

func (k *child) patience() time.Duration {
	if d := k.set.host.stopTimeout; k.group.Load() {
		return d + d/2
	}
	return k.set.host.stopTimeout
}

// abandon leaves a component that ignores its context behind.
func (k *child) abandon() error {
	d := k.set.host.stopTimeout
	k.set.host.log.Error("component did not stop in time", "component", k.name, "timeout", d)
	return named(k.name, fmt.Errorf("did not stop within %s", d))
}

// beat tells the component that owns the set that its stop makes progress.
func (s *set) beat() {
	if s.parent != nil {
		signal(s.parent.beat)
	}
}

// signal wakes the reader of a channel of capacity 1, or leaves its wake-up pending.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
