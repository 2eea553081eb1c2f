package lifecycle_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clusterd/clusterd/internal/lifecycle"
)

// journal records what happens, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func (j *journal) expect(t *testing.T, want ...string) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	if !slices.Equal(j.lines, want) {
		t.Errorf("got  %q\nwant %q", j.lines, want)
	}
}

// steady becomes ready after start and takes stop to end.
func (j *journal) steady(name string, start, stop time.Duration) lifecycle.Component {
	return lifecycle.Func(name, func(ctx context.Context, ready func()) error {
		j.add(name + " starts")
		select {
		case <-ctx.Done():
			j.add(name + " stops early")
			return nil
		case <-time.After(start):
		}
		ready()
		<-ctx.Done()
		time.Sleep(stop)
		j.add(name + " stops")
		return nil
	})
}

// after is ready at once and returns err when d has passed.
func after(name string, d time.Duration, err error) lifecycle.Component {
	return lifecycle.Func(name, func(ctx context.Context, ready func()) error {
		ready()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(d):
			return err
		}
	})
}

// deaf is ready at once and ignores its context until release is closed.
func deaf(name string, release <-chan struct{}) lifecycle.Component {
	return lifecycle.Func(name, func(_ context.Context, ready func()) error {
		ready()
		<-release
		return nil
	})
}

// stopAfter runs root for d and returns what Run does.
func stopAfter(t *testing.T, d time.Duration, root lifecycle.Component, o lifecycle.Options) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	return lifecycle.Run(ctx, root, o)
}

func TestSequenceOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var j journal
		root := lifecycle.Sequence("node",
			j.steady("a", time.Second, time.Second),
			j.steady("b", time.Second, time.Second),
			j.steady("c", time.Second, time.Second))
		begin := time.Now()
		if err := stopAfter(t, time.Minute, root, lifecycle.Options{}); err != nil {
			t.Error(err)
		}
		j.expect(t, "a starts", "b starts", "c starts", "c stops", "b stops", "a stops")
		if took := time.Since(begin); took != time.Minute+3*time.Second {
			t.Errorf("took %s: the stops did not wait for each other", took)
		}
	})
}

func TestSequenceStoppedWhileItStarts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var j journal
		root := lifecycle.Sequence("node", j.steady("a", 0, 0), j.steady("b", time.Hour, 0), j.steady("c", 0, 0))
		if err := stopAfter(t, time.Minute, root, lifecycle.Options{}); err != nil {
			t.Error(err)
		}
		j.expect(t, "a starts", "b starts", "b stops early", "a stops")
	})
}

func TestStoppedSequenceStartsNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var j journal
	if err := lifecycle.Sequence("node", j.steady("a", 0, 0)).Run(ctx, func() { t.Error("ready") }); err != nil {
		t.Error(err)
	}
	j.expect(t)
}

func TestParallelStartsAndStopsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var j journal
		var ready time.Duration
		root := lifecycle.Parallel("node", j.steady("a", 3*time.Second, time.Second), j.steady("b", 2*time.Second, 2*time.Second))
		o := lifecycle.Options{Ready: func(_ string, d time.Duration) { ready = d }}
		begin := time.Now()
		if err := stopAfter(t, time.Minute, root, o); err != nil {
			t.Error(err)
		}
		if ready != 3*time.Second {
			t.Errorf("ready after %s, want that of the slowest", ready)
		}
		if took := time.Since(begin); took != time.Minute+2*time.Second {
			t.Errorf("took %s: the stops waited for each other", took)
		}
	})
}

// TestEarlyEnd has one component end in all the ways there are, and checks that
// the others stop and that the error names the one, and no other.
func TestEarlyEnd(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for _, row := range []struct {
		name string
		bad  lifecycle.Component
		want string
	}{
		{"error while it runs", after("bad", time.Second, boom), "bad: boom"},
		{"nil while it runs", after("bad", time.Second, nil), "bad: ended without being asked to"},
		{"error before ready", lifecycle.Task("bad", func(context.Context) error { return boom }), "bad: boom"},
		{"own context error", after("bad", time.Second, context.Canceled), "bad: context canceled"},
		{"panic", lifecycle.Func("bad", func(context.Context, func()) error { panic("oh") }), "bad: panic: oh"},
		{"panic with nil map", lifecycle.Func("bad", func(context.Context, func()) error {
			var m map[string]int
			m["x"]++
			return nil
		}), "bad: panic: assignment to entry in nil map"},
		{"deeper down", lifecycle.Sequence("outer", lifecycle.Parallel("inner", after("bad", time.Second, boom))), "bad: boom"},
	} {
		for kind, group := range map[string]func(string, ...lifecycle.Component) lifecycle.Component{
			"sequence": lifecycle.Sequence, "parallel": lifecycle.Parallel,
		} {
			t.Run(row.name+" in "+kind, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					var j journal
					err := lifecycle.Run(t.Context(), group("node", j.steady("good", 0, 0), row.bad), lifecycle.Options{})
					if err == nil || err.Error() != row.want {
						t.Errorf("got %v, want %s", err, row.want)
					}
					if last := j.lines[len(j.lines)-1]; !strings.HasPrefix(last, "good stops") {
						t.Errorf("the other did not stop: %q", j.lines)
					}
				})
			})
		}
	}
}

func TestErrorKeepsItsChain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		boom := errors.New("boom")
		err := lifecycle.Run(t.Context(), lifecycle.Sequence("node", after("bad", 0, boom)), lifecycle.Options{})
		if !errors.Is(err, boom) {
			t.Errorf("%v does not wrap its cause", err)
		}
	})
}

func TestCauseComesFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sore := lifecycle.Func("sore", func(ctx context.Context, ready func()) error {
			ready()
			<-ctx.Done()
			return errors.New("close: sore")
		})
		err := lifecycle.Run(t.Context(), lifecycle.Sequence("node", sore, after("bad", time.Second, errors.New("boom"))), lifecycle.Options{})
		if want := "bad: boom\nsore: close: sore"; err == nil || err.Error() != want {
			t.Errorf("got %v, want %q", err, want)
		}
	})
}

func TestGoexit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gone := lifecycle.Func("gone", func(context.Context, func()) error {
			exit()
			return nil
		})
		err := lifecycle.Run(t.Context(), gone, lifecycle.Options{})
		if want := "gone: left its goroutine"; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	})
}

func TestTask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var names []string
		work := lifecycle.Task("work", func(context.Context) error { time.Sleep(time.Second); return nil })
		o := lifecycle.Options{Ready: func(name string, d time.Duration) { names = append(names, name+" "+d.String()) }}
		if err := stopAfter(t, time.Minute, work, o); err != nil {
			t.Error(err)
		}
		if want := []string{"work 1s"}; !slices.Equal(names, want) {
			t.Errorf("got %q, want %q", names, want)
		}
	})
}

func TestTaskStoppedInTheMiddle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		work := lifecycle.Task("work", func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		if err := stopAfter(t, time.Second, work, lifecycle.Options{}); err != nil {
			t.Errorf("%v: a stop is not an error", err)
		}
	})
}
