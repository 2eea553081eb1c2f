package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/k3s-io/kine/pkg/server"
)

// settled waits until no garbage is left to remove and no page to give back.
func settled(t *testing.T, e *Engine) Stats {
	t.Helper()
	var s Stats
	waitFor(t, func() bool {
		var err error
		if s, err = e.Stats(); err != nil {
			t.Fatal(err)
		}
		return s.Settled
	})
	return s
}

func rows(t *testing.T, e *Engine) (n int) {
	t.Helper()
	if _, err := e.file.scan(t.Context(), func(string, version) { n++ }); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestCompactionLeavesWhatCanBeRead(t *testing.T) {
	path := tempPath(t)
	e := open(t, path)
	for i := range 10 {
		put(t, e, "/changed", fmt.Sprint(i))
	}
	put(t, e, "/deleted", "x")
	del(t, e, "/deleted")
	put(t, e, "/again", "x")
	del(t, e, "/again")
	at := put(t, e, "/again", "y")
	later := put(t, e, "/changed", "later")
	for _, c := range []struct {
		revision int64
		want     error
	}{{later + 1, server.ErrFutureRev}, {at, nil}, {at, server.ErrCompacted}, {at - 1, server.ErrCompacted}} {
		if _, err := e.Compact(t.Context(), c.revision); !errors.Is(err, c.want) {
			t.Fatalf("compact %d: %v, want %v", c.revision, err, c.want)
		}
	}
	check := func(e *Engine) {
		t.Helper()
		settled(t, e)
		// The health key, /again, and /changed as it was and is.
		if got := rows(t, e); got != 4 {
			t.Errorf("%d revisions are left", got)
		}
		if got := e.index.keys.Len(); got != 3 {
			t.Errorf("%d keys are left", got)
		}
		if _, _, err := e.Get(t.Context(), "/changed", at-1, false); !errors.Is(err, server.ErrCompacted) {
			t.Errorf("a read below: %v", err)
		}
		if _, _, err := e.Count(t.Context(), "/", "0", at-1); !errors.Is(err, server.ErrCompacted) {
			t.Errorf("a count below: %v", err)
		}
		for key, want := range map[string]string{"/changed": "9", "/deleted": "", "/again": "y"} {
			if got := value(t, e, key, at); got != want {
				t.Errorf("%s at the compacted revision is %q, want %q", key, got, want)
			}
		}
		if got := value(t, e, "/changed", later); got != "later" {
			t.Errorf("/changed is %q", got)
		}
	}
	check(e)
	e.Close()
	check(open(t, path))
}

// After the last revision of all is compacted away, the next one is still higher.
func TestRevisionsNeverGoBack(t *testing.T) {
	path := tempPath(t)
	e := open(t, path)
	put(t, e, "/a", "x")
	last := del(t, e, "/a")
	if _, err := e.Compact(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	settled(t, e)
	e.Close()
	if got := put(t, open(t, path), "/b", "x"); got != last+1 {
		t.Errorf("the revision after %d is %d", last, got)
	}
}

// A store that ended in the middle of compaction goes on with it.
func TestCompactionGoesOnAfterARestart(t *testing.T) {
	path := tempPath(t)
	e := open(t, path)
	for i := range 200 {
		put(t, e, "/a", fmt.Sprint(i))
	}
	current, _ := e.CurrentRevision(t.Context())
	e.Close()
	f, err := openFile(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.append(nil, current); err != nil {
		t.Fatal(err)
	}
	f.close()
	e = open(t, path)
	settled(t, e)
	if got := rows(t, e); got != 2 {
		t.Errorf("%d revisions are left, want 2", got)
	}
}

// What compaction frees goes back to the file system, and the write-ahead log stays short meanwhile.
func TestFileShrinks(t *testing.T) {
	path := tempPath(t)
	e := open(t, path)
	value := string(make([]byte, 64<<10))
	var last int64
	for i := range 800 {
		last = put(t, e, fmt.Sprint("/", i%4), value)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Compact(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	s := settled(t, e)
	wal, err := os.Stat(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	var after os.FileInfo
	waitFor(t, func() bool { // without an end or a write
		if after, err = os.Stat(path); err != nil {
			t.Fatal(err)
		}
		return after.Size() <= 12<<20
	})
	t.Logf("the file had %d MB and has %d MB, %d MB of them free; the log has %d MB", before.Size()>>20, after.Size()>>20, s.FreeBytes>>20, wal.Size()>>20)
	if before.Size() < 40<<20 {
		t.Errorf("the file had %d bytes only: the test tests nothing", before.Size())
	}
	if wal.Size() > 24<<20 {
		t.Errorf("the write-ahead log has %d bytes", wal.Size())
	}
}

// History goes by itself, with the writes that follow.
func TestHistoryIsRetainedForATime(t *testing.T) {
	for retain, goes := range map[time.Duration]bool{time.Hour: false, time.Millisecond: true} {
		e, err := Open(t.Context(), Config{Path: tempPath(t), Retain: retain, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		put(t, e, "/a", "one")
		at := put(t, e, "/a", "two")
		for range 50 {
			time.Sleep(retain % time.Second)
			put(t, e, "/a", "later")
		}
		if got := e.Revisions().Compacted; got >= at != goes {
			t.Errorf("retained for %s: after 50 writes, compacted at %d", retain, got)
		}
	}
}
