package engine

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

type action int

const (
	create  action = iota
	update         // of the version at revision
	remove         // of the version at revision, or of any when that is 0
	compact        // up to revision
)

// write is a change that waits for its transaction.
type write struct {
	ctx      context.Context
	do       action
	key      string
	value    []byte
	revision int64
	lease    int64
	done     chan struct{} // closed when outcome is there
	outcome
}

// outcome is what server.Backend's methods return.
type outcome struct {
	at  int64 // the revision of the store after the write
	kv  *server.KeyValue
	ok  bool
	err error
}

// submit queues w and waits for its transaction. A write whose context ends meanwhile may be made or not.
func (e *Engine) submit(ctx context.Context, w write) outcome {
	w.ctx, w.done = ctx, make(chan struct{})
	if !e.inbox.put(&w) {
		return outcome{err: errClosed}
	}
	select {
	case <-w.done:
		return w.outcome
	case <-ctx.Done():
		e.inbox.remove(&w)
		return outcome{err: ctx.Err()}
	}
}

// Create makes key. When it exists, the error is server.ErrKeyExists.
func (e *Engine) Create(ctx context.Context, key string, value []byte, lease int64) (int64, error) {
	o := e.submit(ctx, write{do: create, key: key, value: value, lease: lease})
	return o.at, o.err
}

// Update changes key if it is still at revision, else it returns what it is now, or nil when it is not there.
func (e *Engine) Update(ctx context.Context, key string, value []byte, revision, lease int64) (int64, *server.KeyValue, bool, error) {
	o := e.submit(ctx, write{do: update, key: key, value: value, revision: revision, lease: lease})
	return o.at, o.kv, o.ok, o.err
}

// Delete removes key if it is still at revision or that is 0, and returns what it was or, when it was not removed, is.
func (e *Engine) Delete(ctx context.Context, key string, revision int64) (int64, *server.KeyValue, bool, error) {
	o := e.submit(ctx, write{do: remove, key: key, revision: revision})
	return o.at, o.kv, o.ok, o.err
}

// Compact refuses reads and watches below revision from now on; what they needed is removed later.
func (e *Engine) Compact(ctx context.Context, revision int64) (int64, error) {
	o := e.submit(ctx, write{do: compact, revision: revision})
	return o.at, o.err
}

// writeAll is the only one that changes the file and the index. Between writes it compacts.
func (e *Engine) writeAll() {
	for {
		var idle <-chan time.Time // when there is something to clean up
		if more, pause := e.maintain(); more {
			idle = time.After(pause)
		}
		batch, open := e.inbox.next(idle, e.ending)
		if !open {
			return
		}
		if len(batch) > 0 {
			e.commit(batch)
		}
	}
}

// stage is a transaction before its commit.
type stage struct {
	e         *Engine
	revision  int64
	compacted int64
	rows      []row
	events    []*server.Event
	latest    map[string]*server.KeyValue // what the keys of rows, and others that were read, are; nil for deleted ones
	nodes     map[string]*node            // where keys are in the index; nil for those that are not there
}

// commit decides on writes, puts the ones that change something on disk and tells everybody.
func (e *Engine) commit(batch []*write) {
	s := &stage{e: e, revision: e.current, latest: map[string]*server.KeyValue{}, nodes: map[string]*node{}}
	if !e.writer.broken {
		s.prepare(batch)
	}
	for _, w := range batch {
		if e.writer.broken {
			w.outcome = outcome{at: e.current, err: rpctypes.ErrGRPCUnhealthy}
			continue
		}
		if err := w.ctx.Err(); err != nil {
			w.outcome = outcome{err: err}
			continue
		}
		w.outcome = s.decide(w)
	}
	s.retain(time.Now())
	if len(s.rows) > 0 || s.compacted > 0 {
		began := time.Now()
		err := e.file.append(s.rows, s.compacted)
		if err != nil {
			err = e.settle(s, err)
		}
		if err != nil {
			for _, w := range batch {
				w.outcome = outcome{at: e.current, err: err}
			}
		} else {
			e.counts.commit(len(s.rows), time.Since(began))
			e.apply(s)
		}
	}
	for _, w := range batch {
		close(w.done)
	}
	e.lookAtDisk(time.Now())
}

// settle finds out whether the transaction of s is on disk after its commit has failed.
func (e *Engine) settle(s *stage, err error) error {
	last, lastErr := e.file.last()
	switch {
	case lastErr == nil && last == e.current:
		return e.unwritten(err)
	case lastErr == nil && last == s.revision && s.revision > e.current:
		return nil
	}
	e.writer.broken = true
	err = fmt.Errorf("commit: %w; it is unknown whether that is on disk", e.file.explain(err))
	select {
	case e.failed <- err:
	default:
	}
	return rpctypes.ErrGRPCUnhealthy
}

// unwritten is the answer to writes that are not on disk, which may be tried again.
func (e *Engine) unwritten(err error) error {
	e.refuse(err)
	if code(err) == codeFull {
		return rpctypes.ErrGRPCNoSpace
	}
	return rpctypes.ErrGRPCUnhealthy
}

// apply makes a transaction that is on disk visible.
func (e *Engine) apply(s *stage) {
	for _, r := range s.rows {
		if !r.deleted() {
			e.cache.put(r.revision, r.value)
		}
	}
	for _, event := range s.events { // what was replaced is hardly read again
		if event.PrevKV != nil {
			e.cache.drop(event.PrevKV.ModRevision)
		}
	}
	e.mu.Lock()
	for _, r := range s.rows {
		s.nodes[r.key] = e.index.addTo(s.node(r.key), r.key, r.version)
	}
	e.current = s.revision
	e.compacted = max(e.compacted, s.compacted)
	for w := range e.watches {
		w.publish(s.events, s.revision)
	}
	e.mu.Unlock()
	now := time.Now()
	for _, r := range s.rows {
		if r.lease > 0 {
			e.leases.Add(r.key, r.revision, int64(r.lease), now)
		}
	}
	if e.writer.refused {
		e.writer.refused = false
		e.log.Info("the datastore takes writes again")
	}
}

// refuse says once that writes fail.
func (e *Engine) refuse(err error) {
	e.counts.refused.Add(1)
	if !e.writer.refused {
		e.log.Error("the datastore takes no writes until that is over", "err", e.file.explain(err))
	}
	e.writer.refused = true
}

// decide is what w comes to after all before it in the transaction.
func (s *stage) decide(w *write) outcome {
	if w.do == compact {
		return s.compact(w.revision)
	}
	old, err := s.now(w.key, w.do == create)
	if err != nil {
		return outcome{at: s.revision, err: err}
	}
	switch {
	case w.do == create && old != nil:
		return outcome{at: s.revision, err: server.ErrKeyExists}
	case w.do == create:
	case old == nil:
		return outcome{at: s.revision}
	case old.ModRevision != w.revision && (w.do == update || w.revision != 0):
		return outcome{at: s.revision, kv: old}
	}
	kv := s.put(w, old)
	if w.do == remove {
		kv = old
	}
	return outcome{at: s.revision, kv: kv, ok: true}
}

// prepare reads the values that the writes of a batch replace at once. What it cannot read is tried again for each write.
func (s *stage) prepare(batch []*write) {
	replaced := map[string]*server.KeyValue{}
	for _, w := range batch {
		if w.do != update && w.do != remove {
			continue
		}
		if n := s.node(w.key); n != nil && !n.latest().deleted() {
			replaced[w.key] = keyValue(w.key, n.latest())
		}
	}
	if len(replaced) > 1 && s.e.fill(slices.Collect(maps.Values(replaced))) == nil {
		maps.Copy(s.latest, replaced)
	}
}

// node is where the key is in the index, nil when it is not there. It is looked up once a transaction.
func (s *stage) node(key string) *node {
	n, known := s.nodes[key]
	if !known {
		// Only this goroutine changes the index, so it may read it without the lock.
		n, _ = s.e.index.get(key)
		s.nodes[key] = n
	}
	return n
}

// now is the key in the middle of the transaction, nil when it is not there. Without value that stays out.
func (s *stage) now(key string, withoutValue bool) (*server.KeyValue, error) {
	if kv, staged := s.latest[key]; staged {
		return kv, nil
	}
	n := s.node(key)
	if n == nil || n.latest().deleted() {
		return nil, nil
	}
	kv := keyValue(key, n.latest())
	if withoutValue {
		return kv, nil
	}
	if err := s.e.fill([]*server.KeyValue{kv}); err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	return kv, nil
}

// put adds the row and the event of a write to the transaction.
func (s *stage) put(w *write, old *server.KeyValue) *server.KeyValue {
	s.revision++
	kv := &server.KeyValue{Key: w.key, Value: w.value, ModRevision: s.revision, CreateRevision: s.revision, Version: 1, Lease: w.lease}
	if old != nil {
		kv.CreateRevision, kv.Version = old.CreateRevision, old.Version+1
	}
	event := &server.Event{Create: w.do == create, Delete: w.do == remove, KV: kv, PrevKV: old}
	if event.Delete {
		kv.Version, kv.Lease = 0, 0
		s.latest[w.key] = nil
	} else {
		s.latest[w.key] = kv
	}
	s.rows = append(s.rows, row{w.key, version{s.revision, kv.CreateRevision, int32(kv.Version), int32(min(kv.Lease, math.MaxInt32))}, kv.Value})
	s.events = append(s.events, event)
	return kv
}

func (s *stage) compact(revision int64) outcome {
	switch {
	case revision > s.e.current:
		return outcome{at: s.revision, err: server.ErrFutureRev}
	case revision <= max(s.compacted, s.e.compacted):
		return outcome{at: s.revision, err: server.ErrCompacted}
	}
	s.compacted = revision
	return outcome{at: s.revision, ok: true}
}

// retain adds to a transaction that writes anyway the compaction of what was there at the last mark, once that is old
// enough, and sets the next mark.
func (s *stage) retain(now time.Time) {
	m := &s.e.writer.mark
	if len(s.rows) == 0 || now.Sub(m.at) < s.e.retain {
		return
	}
	if m.revision > max(s.compacted, s.e.compacted) {
		s.compacted = m.revision
	}
	*m = mark{s.e.current, now}
}
