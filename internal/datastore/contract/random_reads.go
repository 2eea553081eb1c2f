package contract

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// getOwn reads a key that nobody else writes.
func (c *chaos) getOwn(t *testing.T, r *rand.Rand, worker int) error {
	key := c.prefix + c.key(r, worker)
	got, err := c.Kubernetes.Get(c.context(t), key, kubernetes.GetOptions{})
	if err != nil {
		return fmt.Errorf("get %s: %w", key, err)
	}
	if want := c.model.latest(key); describeKV(got.KV) != describeKV(want) {
		return fmt.Errorf("got %s, want %s", describeKV(got.KV), describeKV(want))
	}
	return nil
}

// listLatest keeps an answer for the time when its revision is settled.
func (c *chaos) listLatest(t *testing.T, r *rand.Rand) error {
	l := read{prefix: c.group(r), limit: limit(r)}
	before := c.settled.Load()
	var err error
	if l.found, err = c.Kubernetes.List(c.context(t), l.prefix, kubernetes.ListOptions{Limit: l.limit}); err != nil {
		return fmt.Errorf("list %s: %w", l.prefix, err)
	}
	if l.revision = l.found.Revision; l.revision < before {
		return fmt.Errorf("a list is of revision %d when %d was over", l.revision, before)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads = append(c.reads, l)
	return nil
}

func limit(r *rand.Rand) int64 { return max(0, r.Int64N(40)-20) }

// compareReads looks whether lists were of the revision they said. No write may be under way.
func (c *chaos) compareReads(t *testing.T) {
	t.Helper()
	for _, l := range c.reads {
		if err := l.compare(c.model); err != nil {
			t.Fatalf("list of %s, limit %d, at the latest revision, which was %d: %v", l.prefix, l.limit, l.revision, err)
		}
	}
	c.reads = nil
}

func (l read) compare(m *model) error {
	want := m.at(l.prefix, l.revision)
	if int(l.found.Count) != len(want) {
		return fmt.Errorf("counted %d, want %d", l.found.Count, len(want))
	}
	return same(l.found.Kvs, page(want, l.limit))
}

func page(kvs []*mvccpb.KeyValue, limit int64) []*mvccpb.KeyValue {
	if limit > 0 && int(limit) < len(kvs) {
		return kvs[:limit]
	}
	return kvs
}

// listPast reads a list or counts it at a settled revision, which may be compacted or will be meanwhile.
func (c *chaos) listPast(t *testing.T, r *rand.Rand) error {
	settled, gone := c.settled.Load(), c.acknowledged.Load()
	// Most are of what is not compacted yet.
	revision := settled - r.Int64N(settled-max(gone, c.start)+1)
	if gone > 0 && r.IntN(10) == 0 {
		revision = max(1, gone-1-r.Int64N(50))
	}
	prefix := c.group(r)
	if r.IntN(4) == 0 {
		n, err := c.KV.Get(c.context(t), prefix, clientv3.WithPrefix(), clientv3.WithCountOnly(), clientv3.WithRev(revision))
		if err != nil {
			return c.judgePast(revision, gone, err, nil)
		}
		if want := len(c.model.at(prefix, revision)); int(n.Count) != want {
			err = fmt.Errorf("counted %d, want %d", n.Count, want)
		}
		return c.judgePast(revision, gone, nil, err)
	}
	l := read{prefix: prefix, revision: revision, limit: limit(r)}
	var err error
	if l.found, err = c.Kubernetes.List(c.context(t), prefix, kubernetes.ListOptions{Limit: l.limit, Revision: revision}); err != nil {
		return c.judgePast(revision, gone, err, nil)
	}
	if l.found.Revision < settled {
		return fmt.Errorf("a list at %d says that the store is at %d when %d was over", revision, l.found.Revision, settled)
	}
	return c.judgePast(revision, gone, nil, l.compare(c.model))
}

// judgePast says whether a read at revision should have failed with err, or if it did not, been wrong. Revisions below gone
// were compacted before it.
func (c *chaos) judgePast(revision, gone int64, err, wrong error) error {
	if c.store.Kine && (revision < gone || errors.Is(err, rpctypes.ErrCompacted)) {
		return nil // it compacts when it likes
	}
	switch {
	case errors.Is(err, rpctypes.ErrCompacted) && revision < c.asked.Load():
		return nil
	case err != nil:
		return fmt.Errorf("read at %d, compacted at %d: %w", revision, c.asked.Load(), err)
	case revision < gone:
		return fmt.Errorf("read at %d, compacted at %d: no error", revision, gone)
	case wrong != nil:
		return fmt.Errorf("read at %d: %w", revision, wrong)
	}
	return nil
}

// compactSome compacts at some revision that is settled, and not compacted yet.
func (c *chaos) compactSome(t *testing.T, r *rand.Rand) error {
	c.compacting.Lock()
	defer c.compacting.Unlock()
	settled, gone := c.settled.Load(), max(c.asked.Load(), c.start)
	if settled <= gone {
		return nil
	}
	revision := gone + 1 + r.Int64N(settled-gone)
	c.asked.Store(revision)
	if _, err := c.KV.Compact(c.context(t), revision); err != nil {
		return fmt.Errorf("compact %d of %d: %w", revision, settled, err)
	}
	c.acknowledged.Store(revision)
	return nil
}
