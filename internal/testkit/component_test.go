package testkit

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/clusterd/clusterd/internal/lifecycle"
)

// TestContractFindsFaults shows each check to fail for the component that
// deserves it, which Component itself cannot: it would fail this test.
func TestContractFindsFaults(t *testing.T) {
	forever := make(chan struct{})
	defer close(forever)
	k := contract{start: 50 * time.Millisecond, stop: 50 * time.Millisecond}
	for _, row := range []struct {
		name  string
		check func(context.Context, lifecycle.Component) error
		run   func(ctx context.Context, ready func()) error
		want  string
	}{
		{"returns before ready", k.runs, func(context.Context, func()) error { return nil }, "before it was ready: it returned nil"},
		{"fails before ready", k.runs, func(context.Context, func()) error { return errors.New("boom") }, "before it was ready: boom"},
		{"never ready", k.runs, func(ctx context.Context, _ func()) error { <-ctx.Done(); return nil }, "not ready within"},
		{"does not block", k.runs, func(_ context.Context, ready func()) error { ready(); return nil }, "ended without being asked"},
		{"ready twice", k.runs, func(ctx context.Context, ready func()) error { ready(); ready(); <-ctx.Done(); return nil }, "called ready 2 times"},
		{"stops with an error", k.runs, func(ctx context.Context, ready func()) error { ready(); <-ctx.Done(); return errors.New("boom") }, "stop: boom"},
		{"does not stop", k.runs, func(_ context.Context, ready func()) error { ready(); <-forever; return nil }, "did not stop within"},
		{"fails at once", k.interrupted, func(context.Context, func()) error { return errors.New("boom") }, "before it was ready: boom"},
		{"cannot be interrupted", k.interrupted, func(context.Context, func()) error { <-forever; return nil }, "did not stop within"},
		{"cannot be cancelled before", k.stillborn, func(context.Context, func()) error { <-forever; return nil }, "did not stop within"},
		{"complains when cancelled before", k.stillborn, func(context.Context, func()) error { return errors.New("boom") }, "stop: boom"},
		{"stops with its context's error", k.runs, func(ctx context.Context, ready func()) error { ready(); <-ctx.Done(); return ctx.Err() }, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			err := row.check(t.Context(), lifecycle.Func("x", row.run))
			if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
				t.Errorf("got %v, want %q", err, row.want)
			}
		})
	}
}

func TestLeakIsFoundUnlessExcused(t *testing.T) {
	forever := make(chan struct{})
	defer close(forever)
	before := goroutines()
	go func() { <-forever }()
	if err := (contract{}).leaked(before); err == nil || !strings.Contains(err.Error(), "TestLeakIsFoundUnlessExcused") {
		t.Errorf("got %v, want the stack of the goroutine", err)
	}
	var k contract
	MayLeak("TestLeakIsFoundUnlessExcused")(&k)
	if err := k.leaked(before); err != nil {
		t.Errorf("excused, yet %v", err)
	}
}

func TestLateGoroutineIsNoLeak(t *testing.T) {
	before := goroutines()
	done := make(chan struct{})
	go func() { defer close(done); time.Sleep(50 * time.Millisecond) }()
	if err := (contract{}).leaked(before); err != nil {
		t.Error(err)
	}
	<-done
}

// renamed is called something else each time.
type renamed struct {
	lifecycle.Component
	calls int
}

func (r *renamed) Name() string {
	r.calls++
	return strings.Repeat("x", r.calls-1)
}

func TestNameHasToBeThereAndStay(t *testing.T) {
	c := &renamed{}
	nothing := func() error { return nil }
	if err := (contract{}).tidy(c, nothing); err == nil || !strings.Contains(err.Error(), "no name") {
		t.Errorf("got %v for an empty name", err)
	}
	if err := (contract{}).tidy(c, nothing); err == nil || !strings.Contains(err.Error(), "is now") {
		t.Errorf("got %v for a name that changes", err)
	}
}
