package external

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/btree"
	"github.com/k3s-io/kine/pkg/server"

	"github.com/clusterd/clusterd/internal/datastore/expiry"
)

// mirror is everything in a NATS bucket, in memory: kine's driver reads keys one by one, so that a list of many takes long and
// is of no single revision. It is filled by the feed, and holds what was written in the last minutes with what that replaced.
// It has all leases too: the driver ends only those that it has written itself, until its process ends.
type mirror struct {
	leases *expiry.Leases

	mu     sync.RWMutex
	keys   *btree.BTreeG[*history]
	events []*server.Event
	base   int64 // reads of revisions below it are refused
	last   int64
}

// history is the versions of a key that are kept, the last one being what it is.
type history struct {
	key      string
	versions []version
}

// version is a key from a revision on; kv is nil when it is not there.
type version struct {
	revision int64
	kv       *server.KeyValue
}

// newMirror makes an empty one. By remove it removes a key that is still at a revision, at the end of its lease.
func newMirror(remove func(key string, revision int64) error) *mirror {
	m := &mirror{keys: btree.NewG(32, func(a, b *history) bool { return a.key < b.key })}
	m.leases = expiry.New(func(key string, revision int64) error {
		if _, kvs, err := m.list(key, "", 1, 0); err != nil || len(kvs) == 0 || kvs[0].ModRevision != revision {
			return err
		}
		return remove(key, revision)
	})
	return m
}

// lend has the key removed at the end of its lease, if it has one.
func (m *mirror) lend(kv *server.KeyValue) {
	if kv.Lease > 0 {
		m.leases.Add(kv.Key, kv.ModRevision, kv.Lease, time.Now())
	}
}

// load takes up the keys that there are at a revision.
func (m *mirror) load(revision int64, kvs []*server.KeyValue) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys.Clear(false)
	m.events, m.base, m.last = nil, revision, revision
	for _, kv := range kvs {
		m.keys.ReplaceOrInsert(&history{key: kv.Key, versions: []version{{kv.ModRevision, kv}}})
		m.lend(kv)
	}
}

// apply adds an event, and puts into it what it replaces.
func (m *mirror) apply(event *server.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	kv := event.KV
	h, found := m.keys.Get(&history{key: kv.Key})
	if !found {
		h = &history{key: kv.Key}
		m.keys.ReplaceOrInsert(h)
	}
	event.PrevKV = nil
	if n := len(h.versions); n > 0 {
		event.PrevKV = h.versions[n-1].kv
	}
	if event.Create = event.PrevKV == nil; event.Create && !event.Delete {
		kv.CreateRevision = kv.ModRevision
	}
	is := kv
	if event.Delete {
		is = nil
	} else {
		m.lend(kv)
	}
	h.versions = append(h.versions, version{kv.ModRevision, is})
	m.events, m.last = append(m.events, event), kv.ModRevision
}

// reached notes that there is nothing more up to revision.
func (m *mirror) reached(revision int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = max(m.last, revision)
}

// compact gives up what nobody may read any more.
func (m *mirror) compact(revision int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if revision > m.last {
		return server.ErrFutureRev
	}
	if revision <= m.base {
		return server.ErrCompacted
	}
	m.base = revision
	first, _ := slices.BinarySearchFunc(m.events, revision, func(e *server.Event, r int64) int { return int(e.KV.ModRevision - r) })
	m.events = slices.Clone(m.events[first:])
	var gone []*history
	m.keys.Ascend(func(h *history) bool {
		for len(h.versions) > 1 && h.versions[1].revision <= revision {
			h.versions = h.versions[1:]
		}
		if len(h.versions) == 1 && h.versions[0].kv == nil && h.versions[0].revision <= revision {
			gone = append(gone, h)
		}
		return true
	})
	for _, h := range gone {
		m.keys.Delete(h)
	}
	return nil
}

// at is the key as it was at a revision.
func (h *history) at(revision int64) *server.KeyValue {
	for i := len(h.versions) - 1; i >= 0; i-- {
		if h.versions[i].revision <= revision {
			return h.versions[i].kv
		}
	}
	return nil
}

// list reads a range in order, at a revision or, when that is 0, the last. A limit of 0 is none.
func (m *mirror) list(key, end string, limit, revision int64) (int64, []*server.KeyValue, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	seen := revision
	switch {
	case revision <= 0:
		seen = m.last
	case revision > m.last:
		return m.last, nil, server.ErrFutureRev
	case revision < m.base:
		return m.last, nil, server.ErrCompacted
	}
	var kvs []*server.KeyValue
	m.keys.AscendGreaterOrEqual(&history{key: key}, func(h *history) bool {
		if end == "" && h.key != key || end != "" && h.key >= end {
			return false
		}
		if kv := h.at(seen); kv != nil {
			kvs = append(kvs, kv)
		}
		return limit <= 0 || int64(len(kvs)) < limit
	})
	return m.last, kvs, nil
}

// between are the events of revisions.
func (m *mirror) between(first, last int64) ([]*server.Event, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if first <= m.base {
		return nil, server.ErrCompacted
	}
	var events []*server.Event
	for _, event := range m.events {
		if r := event.KV.ModRevision; r >= first && r <= last {
			events = append(events, event)
		}
	}
	return events, nil
}

// writeLimit bounds a write: without a connection the driver waits for one as long as it may.
const writeLimit = 5 * time.Second

// mirrored is kine's NATS driver with its reads, and the answers that depend on them, taken from the mirror.
type mirrored struct {
	server.Backend
	b      *Backend
	mirror *mirror
}

// List reads the mirror. What this server has written is in it when a write returns.
func (m *mirrored) List(_ context.Context, key, end string, limit, revision int64, keysOnly bool) (int64, []*server.KeyValue, error) {
	at, kvs, err := m.mirror.list(key, end, limit, revision)
	if keysOnly {
		for i, kv := range kvs {
			bare := *kv
			bare.Value = nil
			kvs[i] = &bare
		}
	}
	return at, kvs, err
}

// Get is a List of one key.
func (m *mirrored) Get(ctx context.Context, key string, revision int64, keysOnly bool) (int64, *server.KeyValue, error) {
	at, kvs, err := m.List(ctx, key, "", 1, revision, keysOnly)
	if err != nil || len(kvs) == 0 {
		return at, nil, err
	}
	return at, kvs[0], nil
}

// Count is the length of a List.
func (m *mirrored) Count(_ context.Context, key, end string, revision int64) (int64, int64, error) {
	at, kvs, err := m.mirror.list(key, end, 0, revision)
	return at, int64(len(kvs)), err
}

// Create makes a key and waits for its event.
func (m *mirrored) Create(ctx context.Context, key string, value []byte, lease int64) (int64, error) {
	bounded, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	at, err := m.Backend.Create(bounded, key, value, lease)
	m.follow(ctx, at, err == nil)
	return at, err
}

// Update changes a key that is still at revision and waits for its event.
func (m *mirrored) Update(ctx context.Context, key string, value []byte, revision, lease int64) (int64, *server.KeyValue, bool, error) {
	bounded, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	at, kv, ok, err := m.Backend.Update(bounded, key, value, revision, lease)
	m.follow(ctx, at, ok && err == nil)
	return at, kv, ok, err
}

// Delete removes a key that is still at revision and waits for its event.
func (m *mirrored) Delete(ctx context.Context, key string, revision int64) (int64, *server.KeyValue, bool, error) {
	bounded, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	at, kv, ok, err := m.Backend.Delete(bounded, key, revision)
	m.follow(ctx, at, ok && kv != nil && err == nil)
	return at, kv, ok, err
}

func (m *mirrored) follow(ctx context.Context, at int64, written bool) {
	if written {
		m.b.feed.await(ctx, at, awaitLimit)
	}
}

// Compact gives up what the mirror holds of the past. In the bucket NATS keeps a number of versions of each key by itself.
func (m *mirrored) Compact(_ context.Context, revision int64) (int64, error) {
	err := m.mirror.compact(revision)
	m.mirror.mu.RLock()
	defer m.mirror.mu.RUnlock()
	return m.mirror.last, err
}
