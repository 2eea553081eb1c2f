package contract

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// refused wants that a write did not happen and was told what the key is: at revision, or not there when that is 0.
func refused(t *testing.T, succeeded bool, kv *mvccpb.KeyValue, err error, revision int64) {
	t.Helper()
	if err != nil || succeeded {
		t.Fatalf("a write with a wrong guard: %v, %v", succeeded, err)
	}
	if revision == 0 && kv != nil || revision != 0 && (kv == nil || kv.ModRevision != revision) {
		t.Fatalf("a refused write is told %v, want the key at %d", kv, revision)
	}
}

func testGuards(t *testing.T, c *client) {
	refusedPut := func(key string, guard, is int64) {
		t.Helper()
		r, err := c.tryPut(t, key, "wrong", guard)
		refused(t, r.Succeeded, r.KV, err, is)
	}
	refusedRemove := func(key string, guard, is int64) {
		t.Helper()
		r, err := c.tryRemove(t, key, guard)
		if c.store.Kine && is == 0 {
			return
		}
		refused(t, r.Succeeded, r.KV, err, is)
	}
	one := c.put(t, "a", "one", 0)
	refusedPut("a", 0, one)
	r, err := c.Kubernetes.OptimisticPut(c.context(t), c.prefix+"a", []byte("wrong"), 0, kubernetes.PutOptions{})
	refused(t, r.Succeeded, r.KV, err, 0) // was not asked
	two := c.put(t, "a", "two", one)
	refusedPut("a", one, two)
	refusedPut("none", one, 0)
	refusedRemove("a", one, two)
	refusedRemove("none", one, 0)
	gone := c.remove(t, "a", two)
	if got := c.get(t, "a"); got.Count != 0 || len(got.Kvs) != 0 || got.Header.Revision < gone {
		t.Fatalf("after the deletion at %d: %v", gone, got)
	}
	refusedRemove("a", two, 0)
	again := c.put(t, "a", "again", 0)
	for _, step := range [][2]int64{{one, two}, {two, gone}, {gone, again}} {
		if step[1] <= step[0] || !c.store.Kine && step[1] != step[0]+1 {
			t.Errorf("the revision after %d is %d", step[0], step[1])
		}
	}
}

func testVersions(t *testing.T, c *client) {
	if c.store.Kine {
		t.Skip("this store does not count versions")
	}
	at := c.put(t, "a", "x", 0)
	at = c.put(t, "a", "y", at)
	c.remove(t, "a", at)
	created := c.put(t, "a", "z", 0)
	last := c.put(t, "a", "zz", created)
	want := &mvccpb.KeyValue{Key: []byte(c.prefix + "a"), Value: []byte("zz"), CreateRevision: created, ModRevision: last, Version: 2}
	if got := c.get(t, "a"); got.Count != 1 || got.More || describeKV(got.Kvs[0]) != describeKV(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func testSnapshots(t *testing.T, c *client) {
	before := c.put(t, "other", "x", 0)
	one := c.put(t, "a", "one", 0)
	two := c.put(t, "a", "two", one)
	gone := c.remove(t, "a", two)
	again := c.put(t, "a", "again", 0)
	for _, w := range []struct {
		revision int64
		value    string
	}{{0, "again"}, {before, ""}, {one, "one"}, {two, "two"}, {gone, ""}, {again, "again"}} {
		for _, opts := range [][]clientv3.OpOption{{clientv3.WithRev(w.revision)}, {clientv3.WithRev(w.revision), clientv3.WithPrefix()}} {
			got := c.get(t, "a", opts...)
			value := ""
			if len(got.Kvs) == 1 {
				value = string(got.Kvs[0].Value)
			}
			if value != w.value || int(got.Count) != len(got.Kvs) || got.Header.Revision < again {
				t.Errorf("at %d: %v, want %q", w.revision, got, w.value)
			}
		}
		n := c.get(t, "a", clientv3.WithRev(w.revision), clientv3.WithPrefix(), clientv3.WithCountOnly())
		if want := min(len(w.value), 1); int(n.Count) != want || len(n.Kvs) != 0 {
			t.Errorf("counted at %d: %v, want %d", w.revision, n, want)
		}
	}
}

// testPages reads a list in pages of one revision while it is changed.
func testPages(t *testing.T, c *client) {
	const keys = 25
	name := func(i int) string { return fmt.Sprintf("%03d", i) }
	revisions := make([]int64, keys)
	for i := range keys {
		revisions[i] = c.put(t, name(i), name(i), 0)
	}
	end := clientv3.GetPrefixRangeEnd(c.prefix)
	var seen []string
	start, revision := "", int64(0)
	for page := 0; ; page++ {
		r := c.get(t, start, clientv3.WithRange(end), clientv3.WithLimit(7), clientv3.WithRev(revision))
		if want := int64(keys - len(seen)); r.Count != want {
			t.Fatalf("page %d: counted %d, want %d", page, r.Count, want)
		}
		for _, kv := range r.Kvs {
			seen = append(seen, strings.TrimPrefix(string(kv.Key), c.prefix))
		}
		if r.More != (len(seen) < keys) || r.More != (len(r.Kvs) == 7) {
			t.Fatalf("page %d of %d keys: more is %v", page, len(r.Kvs), r.More)
		}
		if !r.More {
			break
		}
		if revision == 0 {
			revision = r.Header.Revision
		}
		start = seen[len(seen)-1] + "\x00"
		c.remove(t, name(keys-1-page), revisions[keys-1-page])
		c.put(t, name(100+page), "later", 0)
	}
	for i := range keys {
		if i >= len(seen) || seen[i] != name(i) {
			t.Fatalf("paged through %v", seen)
		}
	}
	exact := c.get(t, "", clientv3.WithPrefix(), clientv3.WithLimit(keys), clientv3.WithRev(revision))
	if exact.More || exact.Count != keys || len(exact.Kvs) != keys {
		t.Errorf("with the number of keys as limit: %d keys of %d, more is %v", len(exact.Kvs), exact.Count, exact.More)
	}
	for _, kv := range c.get(t, "", clientv3.WithPrefix(), clientv3.WithKeysOnly()).Kvs {
		if len(kv.Value) != 0 || kv.ModRevision == 0 {
			t.Errorf("a key alone: %v", kv)
		}
	}
}

// testPrefixes has keys in it that patterns of SQL would match.
func testPrefixes(t *testing.T, c *client) {
	names := []string{"a", "a/", "a/1", "a/B", "a/b", "a0", "a_b/1", "axb/1", "a%/1", "a%/2", "A/1", "é/1", "a/\x7f"}
	for _, name := range names {
		c.put(t, name, "x", 0)
	}
	for _, prefix := range []string{"", "a", "a/", "a_b/", "a%/", "A", "é", "none/", "a/B"} {
		want := 0
		for _, name := range names {
			if strings.HasPrefix(name, prefix) {
				want++
			}
		}
		r := c.get(t, prefix, clientv3.WithPrefix())
		n := c.get(t, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if len(r.Kvs) != want || int(r.Count) != want || int(n.Count) != want {
			t.Errorf("below %q: %d keys, count %d, counted %d, want %d", prefix, len(r.Kvs), r.Count, n.Count, want)
		}
		for i, kv := range r.Kvs {
			if i > 0 && string(kv.Key) <= string(r.Kvs[i-1].Key) {
				t.Errorf("below %q: %q comes after %q", prefix, kv.Key, r.Kvs[i-1].Key)
			}
		}
	}
}

func testFutureRevision(t *testing.T, c *client) {
	at := c.put(t, "a", "x", 0) + 1000
	for _, opts := range [][]clientv3.OpOption{{}, {clientv3.WithPrefix()}, {clientv3.WithPrefix(), clientv3.WithCountOnly()}, {clientv3.WithPrefix(), clientv3.WithLimit(1)}} {
		r, err := c.KV.Get(c.context(t), c.prefix+"a", append(opts, clientv3.WithRev(at))...)
		if !errors.Is(err, rpctypes.ErrFutureRev) {
			t.Errorf("a read at a revision to come: %v, %v", r, err)
		}
	}
}

func testCompaction(t *testing.T, c *client) {
	one := c.put(t, "a", "one", 0)
	gone := c.put(t, "gone", "x", 0)
	two := c.put(t, "a", "two", one)
	c.remove(t, "gone", gone)
	three := c.put(t, "a", "three", two)
	c.put(t, "a", "four", three)
	c.compact(t, three)
	for _, opts := range [][]clientv3.OpOption{{}, {clientv3.WithPrefix()}, {clientv3.WithPrefix(), clientv3.WithCountOnly()}, {clientv3.WithPrefix(), clientv3.WithLimit(1)}} {
		r, err := c.KV.Get(c.context(t), c.prefix+"a", append(opts, clientv3.WithRev(two))...)
		if !errors.Is(err, rpctypes.ErrCompacted) {
			t.Errorf("a read at %d, compacted at %d: %v, %v", two, three, r, err)
		}
	}
	if got := c.get(t, "", clientv3.WithPrefix(), clientv3.WithRev(three)); len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "three" {
		t.Errorf("at the compacted revision: %v", got)
	}
	if got := c.get(t, "a"); len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "four" || got.Kvs[0].CreateRevision != one {
		t.Errorf("after the compaction: %v", got)
	}
	if _, err := c.Compact(c.context(t), two); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("a compaction of what is compacted: %v", err)
	}
	if _, err := c.Compact(c.context(t), three+1000); !errors.Is(err, rpctypes.ErrFutureRev) {
		t.Errorf("a compaction of what is to come: %v", err)
	}
}

func testAwkward(t *testing.T, c *client) {
	for _, a := range Awkward {
		RoundTrip(t, c.Client, c.prefix+a.Key, a.Value)
	}
	c.put(t, "big", strings.Repeat("\x00big\xff", 250000), 0)
	if got := c.get(t, "big"); len(got.Kvs) != 1 || len(got.Kvs[0].Value) != 5*250000 {
		t.Errorf("a value of a megabyte has %d bytes", len(got.Kvs[0].Value))
	}
}

func testStatus(t *testing.T, c *client) {
	c.put(t, "a", "x", 0)
	endpoint := "store" // not looked at by clients without connections
	if all := c.Endpoints(); len(all) > 0 {
		endpoint = all[0]
	}
	s, err := c.Status(c.context(t), endpoint)
	if err != nil || s.DbSize <= 0 || s.Version == "" {
		t.Errorf("got %v, %v", s, err)
	}
}
