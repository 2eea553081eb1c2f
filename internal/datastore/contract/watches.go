package contract

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// watch starts a watch below the prefix. It has begun when this returns: later writes are seen.
func (c *client) watch(t *testing.T, key string, opts ...clientv3.OpOption) *pending {
	t.Helper()
	ch := c.Watch(clientv3.WithRequireLeader(c.context(t)), c.prefix+key, append(opts, clientv3.WithPrevKV(), clientv3.WithCreatedNotify())...)
	select {
	case r := <-ch:
		if !r.Created {
			t.Fatalf("a watch began with %v", r)
		}
	case <-time.After(patience):
		t.Fatal("the watch did not begin")
	}
	return &pending{from: ch}
}

func describeKV(kv *mvccpb.KeyValue) string {
	if kv == nil {
		return "nothing"
	}
	return fmt.Sprintf("%q at %d (version %d since %d) with %.40q of %d", kv.Key, kv.ModRevision, kv.Version, kv.CreateRevision, kv.Value, len(kv.Value))
}

// describe is an event as text, without what stores have of the value that a deletion does not have.
func describe(e *clientv3.Event) string {
	if e.Type == clientv3.EventTypeDelete {
		return fmt.Sprintf("%d deletes %q, which was %s", e.Kv.ModRevision, e.Kv.Key, describeKV(e.PrevKv))
	}
	return fmt.Sprintf("%d makes %s, which was %s", e.Kv.ModRevision, describeKV(e.Kv), describeKV(e.PrevKv))
}

// testWatchReplays compares a watch that was there all along with one from the past: both see the same.
func testWatchReplays(t *testing.T, c *client) {
	live := c.watch(t, "a/", clientv3.WithPrefix())
	start := c.put(t, "b/other", "x", 0)
	at := start
	for i := range 3 {
		key := fmt.Sprint("a/", i)
		one := c.put(t, key, "one", 0)
		at = c.put(t, "b/other", fmt.Sprint(i), at)
		c.remove(t, key, c.put(t, key, "two", one))
	}
	c.put(t, "a/0", "again", 0)
	past := c.watch(t, "a/", clientv3.WithPrefix(), clientv3.WithRev(start))
	before := int64(0)
	for range 10 {
		e := live.next(t)
		if got, want := describe(past.next(t)), describe(e); got != want {
			t.Errorf("a watch from the past sees %s, want %s", got, want)
		}
		if e.Kv.ModRevision <= before {
			t.Errorf("%s comes after %d", describe(e), before)
		}
		before = e.Kv.ModRevision
		if created := e.Type == clientv3.EventTypePut && e.Kv.CreateRevision == e.Kv.ModRevision; created != e.IsCreate() || created != (e.PrevKv == nil) {
			t.Errorf("creation or not: %s", describe(e))
		}
	}
}

func testWatchOneKey(t *testing.T, c *client) {
	w := c.watch(t, "a")
	c.put(t, "a/b", "x", 0)
	c.put(t, "A", "x", 0)
	at := c.put(t, "a", "y", 0)
	c.put(t, "ab", "x", 0)
	gone := c.remove(t, "a", at)
	if e := w.next(t); e.Kv.ModRevision != at || string(e.Kv.Key) != c.prefix+"a" {
		t.Errorf("got %s", describe(e))
	}
	if e := w.next(t); e.Kv.ModRevision != gone || e.Type != clientv3.EventTypeDelete || string(e.PrevKv.Value) != "y" {
		t.Errorf("got %s", describe(e))
	}
}

func testWatchFromTheFuture(t *testing.T, c *client) {
	if c.store.Kine {
		t.Skip("this store refuses it")
	}
	at := c.put(t, "a", "0", 0)
	from := at + 3
	w := c.watch(t, "a", clientv3.WithRev(from))
	var want int64
	for i := range 6 {
		at = c.put(t, "a", fmt.Sprint(i+1), at)
		if at >= from && want == 0 {
			want = at
		}
	}
	if e := w.next(t); e.Kv.ModRevision != want {
		t.Errorf("a watch from %d begins with %s", from, describe(e))
	}
}

// testWatchOfWhatIsCompacted wants to hear of it, and that what is left has what was before.
func testWatchOfWhatIsCompacted(t *testing.T, c *client) {
	one := c.put(t, "a", "one", 0)
	still := c.put(t, "still", "x", 0)
	two := c.put(t, "a", "two", one)
	three := c.put(t, "a", "three", two)
	c.compact(t, three)
	end := c.put(t, "still", "y", still)
	for r := range c.Watch(c.context(t), c.prefix+"a", clientv3.WithRev(two)) {
		if r.CompactRevision < three || r.Err() != rpctypes.ErrCompacted {
			t.Errorf("a watch of what is compacted at %d ends with %v, compacted at %d", three, r.Err(), r.CompactRevision)
		}
	}
	// The version that was replaced is older than the compacted revision, but was the latest there: it is not compacted.
	e := c.watch(t, "still", clientv3.WithRev(three+1)).next(t)
	if e.Kv.ModRevision != end || e.PrevKv == nil || e.PrevKv.ModRevision != still || string(e.PrevKv.Value) != "x" {
		t.Errorf("after the compaction: %s", describe(e))
	}
}

// testWatchEnds wants the channel closed soon after its context ends, with nothing to say about it.
func testWatchEnds(t *testing.T, c *client) {
	ctx, cancel := context.WithCancel(c.context(t))
	ch := c.Watch(ctx, c.prefix, clientv3.WithPrefix())
	cancel()
	for r := range ch {
		if len(r.Events) > 0 {
			t.Errorf("an ended watch has %v", r)
		}
	}
	if ctx.Err() == nil || c.context(t).Err() != nil {
		t.Error("the watch did not end with its context")
	}
}

// testProgress wants a quiet watch to be told of revisions that have nothing for it, when asked.
func testProgress(t *testing.T, c *client) {
	ctx := clientv3.WithRequireLeader(c.context(t))
	w := c.watch(t, "quiet/", clientv3.WithPrefix(), clientv3.WithProgressNotify())
	seen := c.put(t, "quiet/a", "x", 0)
	at := c.put(t, "other", "x", 0)
	ask := time.NewTicker(100 * time.Millisecond) // stores leave out requests that come while a watch is behind
	defer ask.Stop()
	late := time.After(patience)
	events := 0
	for {
		select {
		case r, open := <-w.from:
			if !open || r.Err() != nil {
				t.Fatalf("the watch ended: %v", r.Err())
			}
			events += len(r.Events)
			if !r.IsProgressNotify() || r.Header.Revision < at {
				continue
			}
			if events != 1 {
				t.Errorf("told of %d before the event of %d", r.Header.Revision, seen)
			}
			return
		case <-ask.C:
			if err := c.RequestProgress(ctx); err != nil {
				t.Fatal(err)
			}
		case <-late:
			t.Fatal("no progress")
		}
	}
}

// testLeases wants keys to go with their leases, as a deletion that watches see, unless they were written since.
func testLeases(t *testing.T, c *client) {
	ctx := c.context(t)
	lease := func(seconds int64) clientv3.LeaseID {
		r, err := c.Grant(ctx, seconds)
		if err != nil {
			t.Fatal(err)
		}
		return r.ID
	}
	w := c.watch(t, "", clientv3.WithPrefix())
	short := lease(1)
	revisions := map[string]int64{}
	for name, id := range map[string]clientv3.LeaseID{"short": short, "kept": short, "long": lease(3600)} {
		r, err := c.Kubernetes.OptimisticPut(ctx, c.prefix+name, []byte("x"), 0, kubernetes.PutOptions{GetOnFailure: true, LeaseID: id})
		if err != nil || !r.Succeeded {
			t.Fatalf("create %s: %v, %v", name, r, err)
		}
		revisions[name] = r.Revision
		w.next(t)
	}
	c.put(t, "kept", "y", revisions["kept"])
	w.next(t)
	e := w.next(t)
	if e.Type != clientv3.EventTypeDelete || string(e.Kv.Key) != c.prefix+"short" || e.PrevKv == nil || e.PrevKv.ModRevision != revisions["short"] {
		t.Errorf("got %s, want that short has gone", describe(e))
	}
	if got := c.get(t, "", clientv3.WithPrefix()); len(got.Kvs) != 2 {
		t.Errorf("%v are left", got.Kvs)
	}
}
