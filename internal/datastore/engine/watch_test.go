package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
)

// take reads n events.
func take(t *testing.T, w *Watch, n int) []*server.Event {
	t.Helper()
	var all []*server.Event
	late := time.After(patience)
	for len(all) < n {
		select {
		case <-w.Ready():
		case <-late:
			t.Fatalf("%d events of %d", len(all), n)
		}
		events, revision, err := w.Next()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.KV.ModRevision > revision {
				t.Fatalf("event of %d with revision %d", e.KV.ModRevision, revision)
			}
		}
		all = append(all, events...)
	}
	return all
}

func subscribe(t *testing.T, e *Engine, key, end string, start int64) *Watch {
	t.Helper()
	w, err := e.Subscribe(key, end, start, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// describe is an event as text: what happened, to which value from which.
func describe(e *server.Event) string {
	kind := "update"
	if e.Create {
		kind = "create"
	} else if e.Delete {
		kind = "delete"
	}
	before := "nothing"
	if e.PrevKV != nil {
		before = fmt.Sprintf("%s@%d", e.PrevKV.Value, e.PrevKV.ModRevision)
	}
	return fmt.Sprintf("%d %s %s %q from %s", e.KV.ModRevision, kind, e.KV.Key, e.KV.Value, before)
}

// A watch from before sees the same as one that was there all along.
func TestLiveAndReplayedEventsAreTheSame(t *testing.T) {
	path := tempPath(t)
	e := open(t, path)
	live := subscribe(t, e, "/a/", "/a0", 0)
	start := put(t, e, "/b/other", "x")
	for i := range 3 {
		key := fmt.Sprint("/a/", i)
		put(t, e, key, "one")
		put(t, e, "/b/other", fmt.Sprint(i))
		put(t, e, key, "two")
		del(t, e, key)
	}
	put(t, e, "/a/0", "again")
	want := []string{}
	for _, event := range take(t, live, 10) {
		want = append(want, describe(event))
	}
	compare := func(e *Engine) {
		t.Helper()
		for i, event := range take(t, subscribe(t, e, "/a/", "/a0", start), 10) {
			if got := describe(event); got != want[i] {
				t.Errorf("event %d is %s, want %s", i, got, want[i])
			}
		}
	}
	compare(e)
	e.Close()
	compare(open(t, path))
}

func TestWatchOneKeyAndFuture(t *testing.T) {
	e := open(t, tempPath(t))
	one := subscribe(t, e, "/a", "", 0)
	future := subscribe(t, e, "", "", 4)
	if events, revision, err := future.Next(); len(events) > 0 || revision != 1 || err != nil {
		t.Errorf("a watch from revision 4, when 1 is the last, has %v up to %d, %v", events, revision, err)
	}
	put(t, e, "/ab", "x")
	put(t, e, "/a", "y")
	last := put(t, e, "/ab", "z")
	if got := take(t, one, 1); got[0].KV.Key != "/a" {
		t.Errorf("got %s", describe(got[0]))
	}
	if got := take(t, future, 1); got[0].KV.ModRevision != last {
		t.Errorf("a watch from revision 4 has %s", describe(got[0]))
	}
}

// A watch nobody reads must not hold all events in memory, and not lose one.
func TestSlowWatchReadsTheLog(t *testing.T) {
	e := open(t, tempPath(t))
	w := subscribe(t, e, "/", "0", 0)
	value := string(make([]byte, 100<<10))
	const writes = 3 * waitingBytes / (100 << 10) / 2
	for i := range writes {
		put(t, e, fmt.Sprint("/", i), value)
		if w.bytes > waitingBytes {
			t.Fatalf("%d bytes wait", w.bytes)
		}
	}
	if !w.behind {
		t.Fatal("the watch is not behind: the test tests nothing")
	}
	for i, event := range take(t, w, writes) {
		if event.KV.Key != fmt.Sprint("/", i) || len(event.KV.Value) != len(value) {
			t.Fatalf("event %d is of %s", i, event.KV.Key)
		}
	}
	put(t, e, "/live", "again")
	if got := take(t, w, 1); got[0].KV.Key != "/live" || w.behind {
		t.Errorf("after catching up: %s, behind %v", describe(got[0]), w.behind)
	}
}

func TestWatchOfCompactedRevisions(t *testing.T) {
	e := open(t, tempPath(t))
	put(t, e, "/a", "x")
	at := put(t, e, "/a", "y")
	late := subscribe(t, e, "/a", "", 2)
	if _, err := e.Compact(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	if _, _, err := late.Next(); !errors.Is(err, server.ErrCompacted) {
		t.Errorf("a watch that had not read yet: %v", err)
	}
	if _, err := e.Subscribe("/a", "", at, true); !errors.Is(err, server.ErrCompacted) {
		t.Errorf("a watch from the compacted revision: %v", err)
	}
	if got := e.Watch(t.Context(), at); got.CompactRevision != at {
		t.Errorf("the bridge is told %d", got.CompactRevision)
	}
	w := subscribe(t, e, "/a", "", at+1)
	put(t, e, "/a", "z")
	if got := take(t, w, 1); describe(got[0]) != fmt.Sprintf("%d update /a \"z\" from y@%d", at+1, at) {
		t.Errorf("got %s", describe(got[0]))
	}
}

// The channel that the bridge reads says where it begins and how far it has come, also without events.
func TestBridgeWatch(t *testing.T) {
	e := open(t, tempPath(t))
	ctx, cancel := context.WithCancel(t.Context())
	result := e.Watch(ctx, 0)
	if first := <-result.Eventc; first.CurrentRev != 1 || len(first.Events) > 0 {
		t.Fatalf("it begins with %s", first)
	}
	revision := put(t, e, "/a", "x")
	if batch := <-result.Eventc; batch.CurrentRev != revision || len(batch.Events) != 1 {
		t.Fatalf("got %s", batch)
	}
	cancel()
	for range result.Eventc {
	}
	if s, err := e.Stats(); err != nil || s.Watches != 0 {
		t.Errorf("%d watches are left, %v", s.Watches, err)
	}
}

// A watch of the bridge is told of the writes that its request is about, and of the others' revisions if it wants to know.
func TestBridgeWatchOfRequest(t *testing.T) {
	e := open(t, tempPath(t))
	request := func(progress bool) <-chan server.EventBatch {
		r := &etcdserverpb.WatchCreateRequest{Key: []byte("/a/"), RangeEnd: []byte("/a0"), ProgressNotify: progress}
		events := e.Watch(WithRequest(t.Context(), r), 0).Eventc
		if first := <-events; len(first.Events) > 0 {
			t.Fatalf("it begins with %s", first)
		}
		return events
	}
	quiet, progress := request(false), request(true)
	other := put(t, e, "/b/x", "1")
	if batch := <-progress; batch.CurrentRev != other || len(batch.Events) > 0 {
		t.Errorf("of another's write it is told %s", batch)
	}
	own := put(t, e, "/a/x", "1")
	for name, events := range map[string]<-chan server.EventBatch{"quiet": quiet, "progress": progress} {
		if batch := <-events; batch.CurrentRev != own || len(batch.Events) != 1 {
			t.Errorf("%s: got %s", name, batch)
		}
	}
}

// However fast a bridge reads, it gets each event once and in order.
func TestBridgeWatchKeepsOrder(t *testing.T) {
	e := open(t, tempPath(t))
	events := e.Watch(WithRequest(t.Context(), &etcdserverpb.WatchCreateRequest{Key: []byte("/a"), RangeEnd: []byte("/b")}), 0).Eventc
	const writers, each = 4, 300
	var all sync.WaitGroup
	defer all.Wait()
	for w := range writers {
		all.Go(func() {
			for i := range each {
				if _, err := e.Create(t.Context(), fmt.Sprintf("/a/%d/%d", w, i), nil, 0); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	late := time.After(patience)
	for seen, last := 0, int64(1); seen < writers*each; {
		select {
		case batch := <-events:
			for _, event := range batch.Events {
				if last++; event.KV.ModRevision != last {
					t.Fatalf("revision %d after %d", event.KV.ModRevision, last-1)
				}
				seen++
			}
			if batch.CurrentRev < last {
				t.Fatalf("at %d it is said to be all up to %d", last, batch.CurrentRev)
			}
			if last%7 == 0 {
				time.Sleep(time.Millisecond)
			}
		case <-late:
			t.Fatalf("%d events of %d", seen, writers*each)
		}
	}
}

// What a watch did not have to see may be compacted, also when it has too much to wait for a moment later.
func TestQuietWatchFallsBehindAfterCompaction(t *testing.T) {
	e := open(t, tempPath(t))
	w := subscribe(t, e, "/a/", "/a0", 0)
	put(t, e, "/a/0", "x")
	take(t, w, 1)
	for i := range 10 {
		put(t, e, "/b", fmt.Sprint(i))
	}
	last := put(t, e, "/b", "last")
	if _, err := e.Compact(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	value := strings.Repeat("x", waitingBytes/4)
	for i := range 6 {
		put(t, e, fmt.Sprint("/a/", i+1), value)
	}
	for i, event := range take(t, w, 6) {
		if want := last + 1 + int64(i); event.KV.ModRevision != want {
			t.Errorf("event of %d, want %d", event.KV.ModRevision, want)
		}
	}
}

// A bridge that reads nothing for a while gets all events from the log, and then live ones again.
func TestBridgeWatchFallsBehind(t *testing.T) {
	e := open(t, tempPath(t))
	events := e.Watch(WithRequest(t.Context(), &etcdserverpb.WatchCreateRequest{Key: []byte("/a"), RangeEnd: []byte("/b")}), 0).Eventc
	value := strings.Repeat("x", waitingBytes/4)
	last := int64(1)
	read := func(until int64) {
		t.Helper()
		for late := time.After(patience); last < until; {
			select {
			case batch := <-events:
				for _, event := range batch.Events {
					if last++; event.KV.ModRevision != last {
						t.Fatalf("revision %d after %d", event.KV.ModRevision, last-1)
					}
				}
			case <-late:
				t.Fatalf("nothing comes after revision %d", last)
			}
		}
	}
	for i := range 10 {
		put(t, e, fmt.Sprint("/a/", i), value)
	}
	read(11)
	read(put(t, e, "/a/live", "x"))
}

// A store that ends while watches begin ends them all.
func TestBridgeWatchBeginsWhileClosing(t *testing.T) {
	for range 20 {
		e := open(t, tempPath(t))
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range e.Watch(t.Context(), 0).Eventc {
				}
			})
			all.Go(func() { _, _ = e.Create(t.Context(), "/a", nil, 0) })
		}
		e.Close()
		all.Wait()
	}
}
