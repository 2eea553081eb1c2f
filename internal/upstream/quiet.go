package upstream

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// repeatAfter is how long a line that has been logged is not logged again: a fault that goes on says so now and then, and
// does not fill a disk.
const repeatAfter = 10 * time.Minute

// maxRemembered bounds the lines remembered as said.
const maxRemembered = 512

// quiet takes klog's lines one step down: what upstream calls an error is a warning here, since its components retry and
// mend themselves, and its information is for debugging. A warning is not repeated within repeatAfter.
type quiet struct {
	next slog.Handler
	said *said
}

type said struct {
	mu sync.Mutex
	at map[string]time.Time
}

func quieten(next slog.Handler) slog.Handler {
	return quiet{next, &said{at: map[string]time.Time{}}}
}

func level(l slog.Level) slog.Level {
	if l >= slog.LevelError {
		return slog.LevelWarn
	}
	return min(l-slog.LevelInfo+slog.LevelDebug, slog.LevelDebug)
}

func (q quiet) Enabled(ctx context.Context, l slog.Level) bool {
	return q.next.Enabled(ctx, level(l))
}

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError && (expected(r) || q.said.lately(r)) {
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

// lately reports whether a line with the message and error of r has been let through within repeatAfter, and if not
// remembers that it is now.
func (s *said) lately(r slog.Record) bool {
	key := r.Message
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "err" {
			key += a.Value.String()
		}
		return true
	})
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

// expected are upstream's error lines that say nothing is wrong here.
func expected(r slog.Record) bool {
	for _, s := range expectedLines {
		if strings.Contains(r.Message, s) {
			return true
		}
	}
	return false
}

var expectedLines = []string{
	"Failed to set rlimit on max file handles", // CAP_SYS_RESOURCE is missing: said once at the start
	"Failed to ApplyOOMScoreAdj",               // the same
}
