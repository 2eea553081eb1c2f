package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/k3s-io/kine/pkg/server"
)

// patience is far more than anything here takes.
const patience = 30 * time.Second

func tempPath(tb testing.TB) string { return filepath.Join(tb.TempDir(), "state.db") }

func open(tb testing.TB, path string) *Engine {
	tb.Helper()
	e, err := Open(tb.Context(), Config{Path: path, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if !e.closed {
			e.Close()
		}
	})
	return e
}

func put(tb testing.TB, e *Engine, key, value string) int64 {
	tb.Helper()
	_, kv, err := e.Get(tb.Context(), key, 0, false)
	if err != nil {
		tb.Fatal(err)
	}
	var revision int64
	if kv == nil {
		revision, err = e.Create(tb.Context(), key, []byte(value), 0)
	} else {
		revision, _, _, err = e.Update(tb.Context(), key, []byte(value), kv.ModRevision, 0)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return revision
}

func del(tb testing.TB, e *Engine, key string) int64 {
	tb.Helper()
	revision, _, deleted, err := e.Delete(tb.Context(), key, 0)
	if err != nil || !deleted {
		tb.Fatalf("delete %s: %v, %v", key, deleted, err)
	}
	return revision
}

// value reads a key at a revision; "" is for one that is not there.
func value(tb testing.TB, e *Engine, key string, revision int64) string {
	tb.Helper()
	_, kv, err := e.Get(tb.Context(), key, revision, false)
	if err != nil {
		tb.Fatal(err)
	}
	if kv == nil {
		return ""
	}
	return string(kv.Value)
}

func TestRevisionsAreDense(t *testing.T) {
	e := open(t, tempPath(t))
	first, err := e.CurrentRevision(t.Context())
	if err != nil || first != 1 {
		t.Fatalf("a new store is at revision %d (%v), want 1", first, err)
	}
	for i := range int64(5) {
		if got := put(t, e, "/a", fmt.Sprint(i)); got != first+1+i {
			t.Fatalf("write %d has revision %d", i, got)
		}
	}
	if _, err := e.Create(t.Context(), "/a", nil, 0); !errors.Is(err, server.ErrKeyExists) {
		t.Fatalf("create of what is there: %v", err)
	}
	if at, kv, ok, err := e.Update(t.Context(), "/a", nil, 2, 0); ok || err != nil || at != 6 || string(kv.Value) != "4" {
		t.Fatalf("update of an old revision: %d, %v, %v, %v", at, kv, ok, err)
	}
	if at, kv, ok, err := e.Update(t.Context(), "/none", nil, 2, 0); ok || err != nil || at != 6 || kv != nil {
		t.Fatalf("update of nothing: %d, %v, %v, %v", at, kv, ok, err)
	}
	if _, kv, ok, err := e.Delete(t.Context(), "/a", 3); ok || err != nil || kv.ModRevision != 6 {
		t.Fatalf("delete of an old revision: %v, %v, %v", kv, ok, err)
	}
	if got := del(t, e, "/a"); got != 7 {
		t.Fatalf("refused writes took revisions: the next is %d, want 7", got)
	}
}

func TestVersionsCountFromCreation(t *testing.T) {
	e := open(t, tempPath(t))
	put(t, e, "/a", "x")
	put(t, e, "/a", "y")
	del(t, e, "/a")
	created := put(t, e, "/a", "z")
	put(t, e, "/a", "zz")
	_, kv, err := e.Get(t.Context(), "/a", 0, false)
	if err != nil || kv.Version != 2 || kv.CreateRevision != created || kv.ModRevision != created+1 {
		t.Fatalf("got %+v, %v", kv, err)
	}
}

func TestReadsAtRevisions(t *testing.T) {
	path := tempPath(t)
	e := open(t, path)
	one := put(t, e, "/a", "one")
	two := put(t, e, "/a", "two")
	gone := del(t, e, "/a")
	again := put(t, e, "/a", "again")
	check := func(e *Engine) {
		t.Helper()
		for revision, want := range map[int64]string{0: "again", one - 1: "", one: "one", two: "two", gone: "", again: "again"} {
			if got := value(t, e, "/a", revision); got != want {
				t.Errorf("at %d: %q, want %q", revision, got, want)
			}
		}
		if _, _, err := e.Get(t.Context(), "/a", again+1, false); !errors.Is(err, server.ErrFutureRev) {
			t.Errorf("a revision to come: %v", err)
		}
	}
	check(e)
	e.Close()
	check(open(t, path))
}

func TestRanges(t *testing.T) {
	e := open(t, tempPath(t))
	for _, k := range []string{"/b/2", "/a/1", "/b/1", "/b", "/c/1", "/b/3"} {
		put(t, e, k, k)
	}
	del(t, e, "/b/3")
	at := put(t, e, "/b/4", "later")
	for _, c := range []struct {
		key, end        string
		limit, revision int64
		want            string
	}{
		{"/b/", "/b0", 0, 0, "[/b/1 /b/2 /b/4]"},
		{"/b/", "/b0", 2, 0, "[/b/1 /b/2]"},
		{"/b/", "/b0", 0, at - 1, "[/b/1 /b/2]"},
		{"/b/", "/b0", 0, at - 2, "[/b/1 /b/2 /b/3]"},
		{"/b/1\x00", "/b0", 1, 0, "[/b/2]"},
		{"/b", "", 0, 0, "[/b]"},
		{"/x", "/y", 0, 0, "[]"},
		{"", "", 0, 0, "[/a/1 /b /b/1 /b/2 /b/4 /c/1 /registry/health]"},
	} {
		_, kvs, err := e.List(t.Context(), c.key, c.end, c.limit, c.revision, false)
		if err != nil {
			t.Fatal(err)
		}
		keys := []string{}
		for _, kv := range kvs {
			keys = append(keys, kv.Key)
			if len(kv.Value) == 0 {
				t.Errorf("%s has no value", kv.Key)
			}
		}
		if fmt.Sprint(keys) != c.want {
			t.Errorf("%+v: got %v", c, keys)
		}
		if c.limit > 0 {
			continue
		}
		if _, n, err := e.Count(t.Context(), c.key, c.end, c.revision); err != nil || int(n) != len(keys) {
			t.Errorf("%+v: counted %d, %v", c, n, err)
		}
		streamed := 0
		result := e.ListStream(t.Context(), c.key, c.end, 0, c.revision, true)
		for kv := range result.KVc {
			if kv.Key != keys[streamed] || kv.Value != nil {
				t.Errorf("streamed %v, want key %s alone", kv, keys[streamed])
			}
			streamed++
		}
		if err := <-result.Errorc; err != nil || streamed != len(keys) {
			t.Errorf("%+v: streamed %d, %v", c, streamed, err)
		}
	}
}

func TestConcurrentWritersShareTransactions(t *testing.T) {
	e := open(t, tempPath(t))
	const writers, each = 32, 30
	var wg sync.WaitGroup
	seen := make([]bool, writers*each+2)
	var mu sync.Mutex
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				revision, err := e.Create(t.Context(), fmt.Sprintf("/%d/%d", w, i), []byte("v"), 0)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if seen[revision] {
					t.Errorf("revision %d was given out twice", revision)
				}
				seen[revision] = true
				mu.Unlock()
				if current, _ := e.CurrentRevision(t.Context()); current < revision {
					t.Errorf("the store is at %d after a write of %d", current, revision)
				}
			}
		})
	}
	wg.Wait()
	if current, _ := e.CurrentRevision(t.Context()); current != writers*each+1 {
		t.Errorf("the store is at %d", current)
	}
	if s, err := e.Stats(); err != nil || s.Commits >= writers*each || s.Revisions != writers*each {
		t.Errorf("%+v, %v: want fewer commits than revisions", s, err)
	}
}

// One of several creates of the same key wins, also when they are in one transaction.
func TestOneCreateWins(t *testing.T) {
	e := open(t, tempPath(t))
	for round := range 20 {
		var wg sync.WaitGroup
		var mu sync.Mutex
		won := 0
		for range 8 {
			wg.Go(func() {
				_, err := e.Create(t.Context(), fmt.Sprint("/", round), []byte("v"), 0)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					won++
				case !errors.Is(err, server.ErrKeyExists):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if won != 1 {
			t.Fatalf("%d creates of one key succeeded", won)
		}
	}
}

func TestLeases(t *testing.T) {
	path := tempPath(t)
	e := open(t, path)
	if _, err := e.Create(t.Context(), "/short", []byte("x"), 1); err != nil {
		t.Fatal(err)
	}
	kept, err := e.Create(t.Context(), "/kept", []byte("x"), 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := e.Update(t.Context(), "/kept", []byte("y"), kept, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Create(t.Context(), "/long", []byte("x"), 3600); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return value(t, e, "/short", 0) == "" })
	if _, err := e.Create(t.Context(), "/restart", []byte("x"), 1); err != nil {
		t.Fatal(err)
	}
	e.Close()
	e = open(t, path)
	waitFor(t, func() bool { return value(t, e, "/restart", 0) == "" })
	if value(t, e, "/kept", 0) != "y" || value(t, e, "/long", 0) != "x" {
		t.Error("a key without a lease that is over has gone")
	}
}

func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it never came")
		}
	}
}

func TestCallsAfterTheEnd(t *testing.T) {
	e := open(t, tempPath(t))
	w, err := e.Subscribe("", "", 0, false)
	if err != nil {
		t.Fatal(err)
	}
	e.Close()
	if _, err := e.Create(context.Background(), "/a", nil, 0); !errors.Is(err, errClosed) {
		t.Errorf("a write: %v", err)
	}
	if _, _, err := w.Next(); !errors.Is(err, errClosed) {
		t.Errorf("a watch: %v", err)
	}
	if _, err := e.Subscribe("", "", 0, false); !errors.Is(err, errClosed) {
		t.Errorf("a new watch: %v", err)
	}
}
