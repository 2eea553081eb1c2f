package lifecycle_test

import (
	"bytes"
	"context"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clusterd/clusterd/internal/lifecycle"
	"github.com/clusterd/clusterd/internal/testkit"
)

func exit() { runtime.Goexit() }

// wrapper is a component that runs others, made outside the package.
func wrapper(name string, inner lifecycle.Component) lifecycle.Component {
	return lifecycle.Func(name, inner.Run)
}

func TestReadyIsCalledForLeavesAndRoot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var j journal
		twice := lifecycle.Func("twice", func(ctx context.Context, ready func()) error {
			ready()
			ready()
			<-ctx.Done()
			ready()
			return nil
		})
		root := lifecycle.Sequence("node",
			j.steady("a", time.Second, 0),
			wrapper("mine", lifecycle.Parallel("pair", j.steady("b", 2*time.Second, 0), j.steady("c", time.Second, 0))),
			twice)
		var got []string
		o := lifecycle.Options{Ready: func(name string, d time.Duration) { got = append(got, name+" "+d.String()) }}
		if err := stopAfter(t, time.Minute, root, o); err != nil {
			t.Error(err)
		}
		if want := []string{"a 1s", "c 2s", "b 3s", "twice 3s", "node 3s"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestReadyCallsNeverOverlap(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	leaf := lifecycle.Task("leaf", func(context.Context) error { return nil })
	var inside atomic.Int32
	o := lifecycle.Options{Ready: func(name string, _ time.Duration) {
		if inside.Add(1) != 1 {
			t.Error("two calls at once")
		}
		time.Sleep(time.Millisecond)
		inside.Add(-1)
		if name == "node" {
			cancel()
		}
	}}
	if err := lifecycle.Run(ctx, lifecycle.Parallel("node", leaf, leaf, leaf, leaf, leaf, leaf), o); err != nil {
		t.Error(err)
	}
}

func TestReadyAfterStopIsNotReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		late := lifecycle.Func("late", func(ctx context.Context, ready func()) error {
			<-ctx.Done()
			ready()
			return nil
		})
		o := lifecycle.Options{Ready: func(name string, _ time.Duration) { t.Errorf("%s reported", name) }}
		if err := stopAfter(t, time.Second, lifecycle.Sequence("node", late), o); err != nil {
			t.Error(err)
		}
	})
}

// TestMissedStop has a component that never ends: it is named, those before it
// still get their turn and their time, and the whole is bounded.
func TestMissedStop(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		root func(j *journal, stuck lifecycle.Component) lifecycle.Component
		took time.Duration
	}{
		{"alone", func(_ *journal, stuck lifecycle.Component) lifecycle.Component { return stuck }, 2 * time.Second},
		{"in a sequence", func(j *journal, stuck lifecycle.Component) lifecycle.Component {
			return lifecycle.Sequence("node", j.steady("a", 0, time.Second), stuck)
		}, 3 * time.Second},
		{"in a parallel", func(j *journal, stuck lifecycle.Component) lifecycle.Component {
			return lifecycle.Parallel("node", j.steady("a", 0, time.Second), stuck)
		}, 2 * time.Second},
		{"under a long sequence", func(j *journal, stuck lifecycle.Component) lifecycle.Component {
			return wrapper("mine", lifecycle.Sequence("node", j.steady("a", 0, 1900*time.Millisecond),
				j.steady("b", 0, 1900*time.Millisecond), lifecycle.Sequence("inner", j.steady("c", 0, 1900*time.Millisecond), stuck)))
		}, 2*time.Second + 3*1900*time.Millisecond},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var j journal
				var log bytes.Buffer
				release := make(chan struct{})
				defer close(release)
				o := lifecycle.Options{StopTimeout: 2 * time.Second, Log: slog.New(slog.NewTextHandler(&log, nil))}
				begin := time.Now()
				err := stopAfter(t, time.Minute, row.root(&j, deaf("stuck", release)), o)
				if want := "stuck: did not stop within 2s"; err == nil || err.Error() != want {
					t.Errorf("got %v, want %s", err, want)
				}
				if took := time.Since(begin) - time.Minute; took != row.took {
					t.Errorf("stop took %s, want %s", took, row.took)
				}
				if !strings.Contains(log.String(), "component=stuck") || strings.Count(log.String(), "\n") != 1 {
					t.Errorf("log does not name it once: %s", log.String())
				}
			})
		})
	}
}

// TestStuckWrapper has a component that runs others and never returns though
// they have.
func TestStuckWrapper(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var j journal
		release := make(chan struct{})
		defer close(release)
		stuck := lifecycle.Func("stuck", func(ctx context.Context, ready func()) error {
			err := lifecycle.Sequence("inner", j.steady("a", 0, time.Second)).Run(ctx, ready)
			<-release
			return err
		})
		err := stopAfter(t, time.Minute, stuck, lifecycle.Options{StopTimeout: 2 * time.Second})
		if err == nil || !strings.HasPrefix(err.Error(), "stuck: did not stop") {
			t.Errorf("got %v", err)
		}
		j.expect(t, "a starts", "a stops")
	})
}

func TestPanicLogsItsStackAtDebugOnly(t *testing.T) {
	t.Parallel()
	bad := lifecycle.Func("bad", func(context.Context, func()) error { panic("oh") })
	for level, want := range map[slog.Level]bool{slog.LevelDebug: true, slog.LevelInfo: false} {
		var log bytes.Buffer
		h := slog.NewTextHandler(&log, &slog.HandlerOptions{Level: level})
		if err := lifecycle.Run(t.Context(), bad, lifecycle.Options{Log: slog.New(h)}); err == nil {
			t.Error("no error")
		}
		if got := strings.Contains(log.String(), "report_test.go"); got != want {
			t.Errorf("at %s the log has a stack: %t, want %t:\n%s", level, got, want, log.String())
		}
	}
}

// TestContract runs the combinators through what every component has to pass,
// and cannot be parallel since it counts goroutines.
func TestContract(t *testing.T) {
	var j journal
	leaf := j.steady("leaf", time.Millisecond, 0)
	for _, c := range []lifecycle.Component{
		lifecycle.Sequence("sequence", leaf, leaf, lifecycle.Parallel("p", leaf, leaf)),
		lifecycle.Parallel("parallel", leaf, lifecycle.Sequence("s", leaf)),
		lifecycle.Sequence("empty"),
		lifecycle.Parallel("none"),
		lifecycle.Task("task", func(context.Context) error { return nil }),
	} {
		t.Run(c.Name(), func(t *testing.T) {
			testkit.Component(t, func(*testing.T) lifecycle.Component { return c })
		})
	}
}
