package datastore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/k3s-io/kine/pkg/server"
)

// chaseDelay is how long after a write the log's reader is checked for having
// seen it. Reads do the same, so it matters only when nobody reads.
const chaseDelay = time.Second

// backend wraps kine's engine to make up for three things in it (0.17.5):
//
//   - Its writers poll for SQLite's lock, which starves some of them under load.
//     Here they queue.
//   - Writers that finish together can leave the current revision one behind
//     until the next write. API servers then wait seconds for a consistent list.
//     Here it is the highest revision any call has returned.
//   - The wake-up of the log's reader can get lost (a full queue, a failed query,
//     or the first one ever, which only prepares the statement). A later read
//     repeats it, so each burst of writes is followed by one.
type backend struct {
	server.Backend
	revision atomic.Int64
	writing  chan struct{} // holds one token; who has it may write
	wrote    chan struct{} // wakes chase
}

var _ server.Backend = (*backend)(nil)

func newBackend(inner server.Backend) *backend {
	return &backend{
		Backend: inner,
		writing: make(chan struct{}, 1),
		wrote:   make(chan struct{}, 1),
	}
}

// see notes a revision that is on disk.
func (b *backend) see(revision int64) {
	for {
		old := b.revision.Load()
		if revision <= old || b.revision.CompareAndSwap(old, revision) {
			return
		}
	}
}

// lock waits for the turn to write.
func (b *backend) lock(ctx context.Context) error {
	select {
	case b.writing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// unlock ends a write which left the store at revision.
func (b *backend) unlock(revision int64) {
	<-b.writing
	b.see(revision)
	select {
	case b.wrote <- struct{}{}:
	default:
	}
}

// chase reads once after each burst of writes, until ctx ends.
func (b *backend) chase(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.wrote:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(chaseDelay):
		}
		// The read is made for its side effect; a failure shows where it matters.
		_, _, _ = b.Get(ctx, server.HealthKey, 0, true)
	}
}

func (b *backend) Create(ctx context.Context, key string, value []byte, lease int64) (revision int64, err error) {
	if err := b.lock(ctx); err != nil {
		return 0, err
	}
	defer func() { b.unlock(revision) }()
	return b.Backend.Create(ctx, key, value, lease)
}

func (b *backend) Update(ctx context.Context, key string, value []byte, rev, lease int64) (revision int64, kv *server.KeyValue, updated bool, err error) {
	if err := b.lock(ctx); err != nil {
		return 0, nil, false, err
	}
	defer func() { b.unlock(revision) }()
	return b.Backend.Update(ctx, key, value, rev, lease)
}

func (b *backend) Delete(ctx context.Context, key string, rev int64) (revision int64, kv *server.KeyValue, deleted bool, err error) {
	if err := b.lock(ctx); err != nil {
		return 0, nil, false, err
	}
	defer func() { b.unlock(revision) }()
	return b.Backend.Delete(ctx, key, rev)
}

func (b *backend) Get(ctx context.Context, key string, rev int64, keysOnly bool) (int64, *server.KeyValue, error) {
	revision, kv, err := b.Backend.Get(ctx, key, rev, keysOnly)
	b.see(revision)
	return revision, kv, err
}

func (b *backend) List(ctx context.Context, key, end string, limit, rev int64, keysOnly bool) (int64, []*server.KeyValue, error) {
	revision, kvs, err := b.Backend.List(ctx, key, end, limit, rev, keysOnly)
	b.see(revision)
	return revision, kvs, err
}

func (b *backend) ListStream(ctx context.Context, key, end string, limit, rev int64, keysOnly bool) server.ListResult {
	result := b.Backend.ListStream(ctx, key, end, limit, rev, keysOnly)
	b.see(result.CurrentRevision)
	return result
}

func (b *backend) Count(ctx context.Context, key, end string, rev int64) (int64, int64, error) {
	revision, n, err := b.Backend.Count(ctx, key, end, rev)
	b.see(revision)
	return revision, n, err
}

// CurrentRevision never goes back and is never below what a call has returned.
func (b *backend) CurrentRevision(ctx context.Context) (int64, error) {
	revision, err := b.Backend.CurrentRevision(ctx)
	if err != nil {
		return 0, err
	}
	b.see(revision)
	return b.revision.Load(), nil
}

// selfTest writes the health key and waits for its event: the disk takes
// writes, and the log's reader has its statement ready before anyone watches.
func (d *database) selfTest(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b := d.backend
	current, err := b.CurrentRevision(ctx)
	if err != nil {
		return fmt.Errorf("read current revision: %w", err)
	}
	events := b.Watch(ctx, current+1)
	written, err := b.touchHealth(ctx)
	if err != nil {
		return err
	}
	return b.await(ctx, events, written)
}

// touchHealth writes the health key again and returns the write's revision.
func (b *backend) touchHealth(ctx context.Context) (int64, error) {
	_, kv, err := b.Get(ctx, server.HealthKey, 0, false)
	if err != nil {
		return 0, fmt.Errorf("read health key: %w", err)
	}
	if kv == nil {
		return b.Create(ctx, server.HealthKey, []byte(server.HealthVal), 0)
	}
	revision, _, updated, err := b.Update(ctx, server.HealthKey, []byte(server.HealthVal), kv.ModRevision, 0)
	if err != nil {
		return 0, fmt.Errorf("write health key: %w", err)
	}
	if !updated {
		return 0, errors.New("health key changed meanwhile: is another process using the file?")
	}
	return revision, nil
}

// await reads until the event of revision has come, and keeps waking the log's
// reader for it.
func (b *backend) await(ctx context.Context, w server.WatchResult, revision int64) error {
	wake := time.NewTicker(5 * time.Millisecond)
	defer wake.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-w.Errorc:
			return fmt.Errorf("watch health key: %w", err)
		case batch, ok := <-w.Eventc:
			if !ok {
				return errors.New("watch of health key ended")
			}
			if batch.CurrentRev >= revision {
				return nil
			}
		case <-wake.C:
			if _, _, err := b.Get(ctx, server.HealthKey, 0, true); err != nil {
				return fmt.Errorf("read health key: %w", err)
			}
		}
	}
}
