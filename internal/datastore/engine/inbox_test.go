package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/k3s-io/kine/pkg/server"
)

// together makes writes in one transaction.
func together(t *testing.T, e *Engine, writes ...*write) {
	t.Helper()
	for _, w := range writes {
		w.ctx, w.done = t.Context(), make(chan struct{})
	}
	e.inbox.mu.Lock()
	e.inbox.writes = append(e.inbox.writes, writes...)
	e.inbox.mu.Unlock()
	select {
	case e.inbox.wake <- struct{}{}:
	default:
	}
	late := time.After(patience)
	for _, w := range writes {
		select {
		case <-w.done:
		case <-late:
			t.Fatalf("no answer to the write of %s", w.key)
		}
	}
}

// The writes of one transaction see what those before them have done.
func TestOneKeyManyTimesInATransaction(t *testing.T) {
	path := tempPath(t)
	e := open(t, path)
	put(t, e, "/c", "old")
	r := put(t, e, "/a", "one")
	w := subscribe(t, e, "", "", 0)
	writes := []*write{
		{do: update, key: "/a", value: []byte("two"), revision: r},
		{do: update, key: "/a", value: []byte("late"), revision: r},
		{do: remove, key: "/a", revision: r + 1},
		{do: create, key: "/a", value: []byte("three")},
		{do: create, key: "/a", value: []byte("late")},
		{do: create, key: "/b", value: []byte("one")},
		{do: update, key: "/b", value: []byte("two"), revision: r + 4},
		{do: remove, key: "/b"},
		{do: update, key: "/c", value: []byte("new"), revision: r - 1},
	}
	together(t, e, writes...)
	for i, want := range []outcome{{at: r + 1, ok: true}, {at: r + 1}, {at: r + 2, ok: true}, {at: r + 3, ok: true}, {at: r + 3, err: server.ErrKeyExists},
		{at: r + 4, ok: true}, {at: r + 5, ok: true}, {at: r + 6, ok: true}, {at: r + 7, ok: true}} {
		if got := writes[i].outcome; got.at != want.at || got.ok != want.ok || !errors.Is(got.err, want.err) {
			t.Errorf("write %d: %+v, want %+v", i, got, want)
		}
	}
	if was := writes[1].kv; was == nil || was.ModRevision != r+1 || string(was.Value) != "two" {
		t.Errorf("the key was at %+v", was)
	}
	var got []string
	for _, event := range take(t, w, 7) {
		_, what, _ := strings.Cut(describe(event), " ")
		got = append(got, what)
	}
	want := []string{
		`update /a "two" from one@3`, `delete /a "" from two@4`, `create /a "three" from nothing`, `create /b "one" from nothing`,
		`update /b "two" from one@7`, `delete /b "" from two@8`, `update /c "new" from old@2`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("events\n%q, want\n%q", got, want)
	}
	e.Close()
	e = open(t, path)
	for key, want := range map[string]string{"/a": "three", "/b": "", "/c": "new"} {
		_, kv, err := e.Get(t.Context(), key, 0, false)
		if err != nil || (kv == nil) != (want == "") || kv != nil && string(kv.Value) != want {
			t.Errorf("%s is %+v, %v; want %q", key, kv, err, want)
		}
	}
}

func TestTransactionIsBounded(t *testing.T) {
	i := newInbox()
	for range batchWrites + 1 {
		i.put(&write{})
	}
	if first, second := len(i.take()), len(i.take()); first != batchWrites || second != 1 {
		t.Errorf("%d writes, then %d", first, second)
	}
	for _, bytes := range []int{batchBytes - 1, 10, 10} {
		i.put(&write{value: make([]byte, bytes)})
	}
	if first, second := len(i.take()), len(i.take()); first != 2 || second != 1 {
		t.Errorf("%d large writes, then %d", first, second)
	}
}

// Nobody waits for ever for a store that has ended.
func TestEndOfInbox(t *testing.T) {
	i := newInbox()
	w := &write{done: make(chan struct{})}
	i.put(w)
	ending := make(chan struct{})
	close(ending)
	if _, open := i.next(nil, ending); open {
		t.Error("the inbox is open")
	}
	select {
	case <-w.done:
	default:
		t.Fatal("the write that waited has no answer")
	}
	if !errors.Is(w.err, errClosed) || i.put(&write{}) {
		t.Errorf("the answer is %v", w.err)
	}
}

// A disk that hangs does not keep those whose time is over, nor what they wanted to write.
func TestWriteEndsWithItsContext(t *testing.T) {
	e := open(t, tempPath(t))
	e.file.mu.Lock() // as long as a commit takes
	first := &write{ctx: t.Context(), do: create, key: "/a", done: make(chan struct{})}
	e.inbox.put(first)
	for end := time.Now().Add(patience); e.inbox.len() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the write is not taken")
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := e.Create(ctx, "/b", nil, 0)
		ended <- err
	}()
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(patience):
		t.Error("it waits for the disk")
	}
	if e.inbox.len() > 0 {
		t.Error("what nobody waits for is kept")
	}
	e.file.mu.Unlock()
	<-first.done
	if last := put(t, e, "/c", "x"); first.err != nil || last != first.at+1 {
		t.Errorf("the first write ended with %v at %d, the last at %d", first.err, first.at, last)
	}
}

// What was acknowledged while the store was closed is there when it is opened again.
func TestCloseAnswersEveryWrite(t *testing.T) {
	path := tempPath(t)
	e := open(t, path)
	var mu sync.Mutex
	var made []string
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			for i := 0; ; i++ {
				key := fmt.Sprintf("/%d/%d", w, i)
				if _, err := e.Create(context.Background(), key, nil, 0); errors.Is(err, errClosed) {
					return
				} else if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				made = append(made, key)
				mu.Unlock()
			}
		})
	}
	time.Sleep(20 * time.Millisecond)
	e.Close()
	all.Wait()
	e = open(t, path)
	for _, key := range made {
		if _, kv, err := e.Get(t.Context(), key, 0, true); kv == nil || err != nil {
			t.Errorf("%s is %v, %v", key, kv, err)
		}
	}
}

// A transaction that fails leaves nothing behind, nor does it keep the next from being made.
func TestTransactionAfterFailedOne(t *testing.T) {
	e := open(t, tempPath(t))
	r := put(t, e, "/a", "x")
	rows := func(revisions ...int64) (all []row) {
		for _, at := range revisions {
			all = append(all, row{"/b", version{at, at, 1, 0}, nil})
		}
		return all
	}
	if err := e.file.append(rows(r+1, r), 0); err == nil {
		t.Fatal("a revision was written twice")
	}
	if last, err := e.file.last(); last != r || err != nil {
		t.Errorf("the file is at %d, %v; want %d", last, err, r)
	}
	if got := put(t, e, "/b", "y"); got != r+1 {
		t.Errorf("the next write has revision %d, want %d", got, r+1)
	}
}
