package upstream

import (
	"context"
	"log/slog"
	"math"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// repeatAfter is how long a line that has been logged is not logged again: a fault that goes on says so now and then, and
// does not fill a disk.
const repeatAfter = 10 * time.Minute

// maxRemembered bounds the lines remembered as said.
const maxRemembered = 512

// patience is how long a start may take before upstream's complaints about it are shown: until then they are about parts
// that have not started yet.
const patience = time.Minute

// settling is how long after the start complaints are still taken for its echo.
const settling = 20 * time.Second

// quiet takes upstream's lines one step down: what it calls an error is a warning here, since its components retry and mend
// themselves, and its information is for debugging. A warning is not repeated within repeatAfter. While the process starts,
// and when it stops, warnings are for debugging too.
type quiet struct {
	next slog.Handler
	said *said
}

// hush is until when, in Unix nanoseconds, upstream's complaints are kept for debugging.
var hush atomic.Int64

// Started says that all components are ready: complaints from a while later on are real.
func Started() { Settle(settling) }

// Settle keeps complaints for debugging for d from now.
func Settle(d time.Duration) { hush.Store(time.Now().Add(d).UnixNano()) }

// Stopping says that components end, in whatever order, and find each other gone.
func Stopping() { hush.Store(math.MaxInt64) }

type said struct {
	mu sync.Mutex
	at map[string]time.Time
}

func quieten(next slog.Handler) slog.Handler {
	hush.Store(time.Now().Add(patience).UnixNano())
	return quiet{next, &said{at: map[string]time.Time{}}}
}

func level(l slog.Level) slog.Level {
	if l >= slog.LevelWarn {
		return slog.LevelWarn
	}
	return min(l-slog.LevelInfo+slog.LevelDebug, slog.LevelDebug)
}

func (q quiet) Enabled(ctx context.Context, l slog.Level) bool {
	return q.next.Enabled(ctx, level(l))
}

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn && (r.Time.UnixNano() < hush.Load() || expected(r) || q.said.lately(r)) {
		r.Level = slog.LevelInfo
	}
	r.Level = level(r.Level)
	if !q.next.Enabled(ctx, r.Level) {
		return nil
	}
	r.Message = strings.TrimSpace(r.Message)
	return q.next.Handle(ctx, r)
}

func (q quiet) WithAttrs(a []slog.Attr) slog.Handler { return quiet{q.next.WithAttrs(a), q.said} }
func (q quiet) WithGroup(n string) slog.Handler      { return quiet{q.next.WithGroup(n), q.said} }

// particular is what tells apart lines that say the same of different objects: identifiers and numbers.
var particular = regexp.MustCompile(`[0-9a-f]{8,}|[0-9]+`)

// lately reports whether a line with the message and error of r, but for identifiers, has been let through within
// repeatAfter, and if not remembers that it is now.
func (s *said) lately(r slog.Record) bool {
	key := particular.ReplaceAllString(r.Message+" "+attr(r, "err"), "#")
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, ok := s.at[key]; ok && r.Time.Sub(t) < repeatAfter {
		return true
	}
	if len(s.at) >= maxRemembered {
		clear(s.at)
	}
	s.at[key] = r.Time
	return false
}

func attr(r slog.Record, key string) (value string) {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == key {
			value = a.Value.String()
		}
		return value == ""
	})
	return value
}

// expected reports whether upstream calls an error what is none.
func expected(r slog.Record) bool {
	text := r.Message + " " + attr(r, "err")
	for _, s := range expectedLines {
		if strings.Contains(text, s) {
			return true
		}
	}
	return false
}

// expectedLines are parts of a line's message, of its error, or of both with a space between them.
var expectedLines = []string{
	// CAP_SYS_RESOURCE is missing, which is said once at the start.
	"Failed to set rlimit on max file handles",
	"oom score",
	// A controller's cache is a moment behind its own write; it tries again.
	"is not as new as written version",
	"node updates may not change podCIDR except from",
	"the object has been modified; please apply your changes to the latest version and try again",
	// A client went away in the middle of a request, an exec or a port-forward.
	"Error on socket receive",
	"Timeout or abort while handling",
	"Post-timeout activity",
	// A container or its cgroup went away between being listed and being looked at.
	"ContainerStatus from runtime service failed",
	"failed to read memory cgroup",
	"Partial failure issuing cadvisor.ContainerInfoV2",
	"ReopenContainerLog from runtime service failed rpc error: code = Unknown desc = container is not running",
	"reopen container log failed rpc error: code = Unknown desc = container is not running",
	// The datastore's database is away, which is said once by the datastore itself.
	"Failed to list latest changes",
	"Failed to prepare to list latest changes",
	"Failed to ping database connection",
	"etcdserver: unhealthy cluster",
	// The node has another address than at the start, which the kubelet leaves to us to write down.
	"not found in the host's network interfaces",
	// The directory of static pods is empty.
	"The manifest file is empty, ignoring.",
}
