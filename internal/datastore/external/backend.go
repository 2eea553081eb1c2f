package external

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/clusterd/clusterd/internal/datastore/endpoint"
)

const (
	// awaitLimit is how long a list waits for the feed before it goes on without, syncLimit how long a request for progress
	// does before something is written for it to see.
	awaitLimit = 3 * time.Second
	syncLimit  = 200 * time.Millisecond
)

// Backend is an open database. All methods may be called at the same time.
type Backend struct {
	log      *slog.Logger
	endpoint endpoint.Endpoint
	kine     server.Backend
	table    *table  // of databases with SQL, else nil
	mirror   *mirror // of NATS, else nil
	writes   writes
	feed     *feed

	life    context.Context // until Close
	stop    context.CancelFunc
	running sync.WaitGroup
	drivers sync.WaitGroup
	away    atomic.Bool // the last call failed
	syncing sync.Mutex
	failed  chan error
}

// writes is how keys are changed.
type writes interface {
	Create(ctx context.Context, key string, value []byte, lease int64) (int64, error)
	Update(ctx context.Context, key string, value []byte, revision, lease int64) (int64, *server.KeyValue, bool, error)
	Delete(ctx context.Context, key string, revision int64) (int64, *server.KeyValue, bool, error)
}

func dataSource(e endpoint.Endpoint) string {
	return strings.TrimPrefix(e.DSN, "postgres://")
}

// Close ends watches and closes the connections.
func (b *Backend) Close() {
	b.stop()
	b.running.Wait()
	b.drivers.Wait()
}

// Failed tells of an error after which nothing that is remembered can be trusted. The process must begin again.
func (b *Backend) Failed() <-chan error { return b.failed }

func (b *Backend) fail(err error) {
	select {
	case b.failed <- err:
	default:
	}
}

// answers is the errors that are answers, not failures.
func answers(err error) bool {
	return err == nil || errors.Is(err, server.ErrCompacted) || errors.Is(err, server.ErrFutureRev) || errors.Is(err, server.ErrKeyExists)
}

// outcome notes whether the database answers, and turns its failures into one that callers retry.
func (b *Backend) outcome(ctx context.Context, err error) error {
	if answers(err) {
		if b.away.Load() && b.away.CompareAndSwap(true, false) {
			b.log.Info("the datastore answers again", "endpoint", b.endpoint.String())
		}
		return err
	}
	if ctx.Err() != nil && b.life.Err() == nil {
		return err // the caller's patience says nothing of the database
	}
	if b.life.Err() == nil && b.away.CompareAndSwap(false, true) {
		b.log.Warn("the datastore does not answer; what needs it waits", "endpoint", b.endpoint.String(), "reason", unwrapped(err))
	}
	return rpctypes.ErrGRPCUnhealthy
}

// Get reads one key; it is nil when it is not there.
func (b *Backend) Get(ctx context.Context, key string, revision int64, keysOnly bool) (int64, *server.KeyValue, error) {
	at, kv, err := b.kine.Get(ctx, key, revision, keysOnly)
	return at, kv, b.outcome(ctx, err)
}

// List reads a range in order, as it was at revision, or is when that is 0.
func (b *Backend) List(ctx context.Context, key, end string, limit, revision int64, keysOnly bool) (int64, []*server.KeyValue, error) {
	if end == key+"\x00" {
		end = "" // that key alone; not all databases take the byte
	}
	settled := int64(0)
	if revision == 0 && b.table != nil {
		var err error
		if settled, err = b.settle(ctx); err != nil {
			return 0, nil, err
		}
	}
	at, kvs, err := b.kine.List(ctx, key, end, limit, max(revision, settled), keysOnly)
	if settled > 0 {
		at = settled
	}
	return at, kvs, b.outcome(ctx, err)
}

// settle is a revision up to which everything that will ever be committed is.
func (b *Backend) settle(ctx context.Context) (int64, error) {
	reached := b.feed.reached()
	at, _, err := b.kine.Get(ctx, server.HealthKey, 0, true) // the cheapest read that wakes the driver's poller too
	if err = b.outcome(ctx, err); err != nil {
		return 0, err
	}
	if at < reached {
		b.fail(fmt.Errorf("datastore %s has lost the revisions from %d to %d, which this server has seen: it was restored, or another one took over that did not have them",
			b.endpoint, at+1, reached))
		return 0, rpctypes.ErrGRPCUnhealthy
	}
	b.feed.await(ctx, at, awaitLimit)
	return at, ctx.Err()
}

// Count is the number of keys of a range at revision, or now when that is 0.
func (b *Backend) Count(ctx context.Context, key, end string, revision int64) (int64, int64, error) {
	if end == key+"\x00" {
		end = key + "\x01"
	}
	at, n, err := b.kine.Count(ctx, key, end, revision)
	return at, n, b.outcome(ctx, err)
}

// Create makes key. When it exists, the error is server.ErrKeyExists.
func (b *Backend) Create(ctx context.Context, key string, value []byte, lease int64) (int64, error) {
	at, err := b.writes.Create(ctx, key, value, lease)
	return at, b.outcome(ctx, err)
}

// Update changes key if it is still at revision, else it returns what it is now, or nil when it is not there.
func (b *Backend) Update(ctx context.Context, key string, value []byte, revision, lease int64) (int64, *server.KeyValue, bool, error) {
	at, kv, ok, err := b.writes.Update(ctx, key, value, revision, lease)
	return at, kv, ok, b.outcome(ctx, err)
}

// Delete removes key if it is still at revision, and returns what it is when it was not removed.
func (b *Backend) Delete(ctx context.Context, key string, revision int64) (int64, *server.KeyValue, bool, error) {
	at, kv, ok, err := b.writes.Delete(ctx, key, revision)
	return at, kv, ok, b.outcome(ctx, err)
}

// Compact gives up everything below revision.
func (b *Backend) Compact(ctx context.Context, revision int64) (at int64, err error) {
	err = guarded(func() (err error) {
		at, err = b.kine.Compact(ctx, revision)
		if known, _ := b.kine.CurrentRevision(ctx); errors.Is(err, server.ErrFutureRev) && revision <= b.feed.reached() {
			at, err = b.kine.Compact(ctx, known) // what the driver remembers can be a little behind
		}
		return err
	})
	return at, b.outcome(ctx, err)
}

// DbSize is the size of the database in bytes.
func (b *Backend) DbSize(ctx context.Context) (int64, error) {
	n, err := b.kine.DbSize(ctx)
	return n, b.outcome(ctx, err)
}

// Current is the revision up to which all events have been given to their watches.
func (b *Backend) Current() int64 { return b.feed.reached() }

// Sync brings the feed to the database's last revision. That may have no event, as after a deletion in NATS; something
// is written then, whose event says that nothing is left out before it.
func (b *Backend) Sync() {
	if !b.syncing.TryLock() {
		return
	}
	defer b.syncing.Unlock()
	at, err := b.kine.CurrentRevision(b.life)
	if err == nil && !b.feed.await(b.life, at, syncLimit) {
		_, _ = b.touch(b.life) // the next one tries again
	}
}

// touch writes the health key again and returns the revision of that.
func (b *Backend) touch(ctx context.Context) (int64, error) {
	_, kv, err := b.kine.Get(ctx, server.HealthKey, 0, false)
	if err = b.outcome(ctx, err); err != nil {
		return 0, err
	}
	if kv == nil {
		return b.Create(ctx, server.HealthKey, []byte(server.HealthVal), 0)
	}
	at, _, _, err := b.Update(ctx, server.HealthKey, []byte(server.HealthVal), kv.ModRevision, 0)
	return at, err
}

// reload fills the mirror, where there is one, with what there is at a revision.
func (b *Backend) reload(ctx context.Context, revision int64) error {
	if b.mirror == nil {
		return nil
	}
	_, kvs, err := b.kine.(*mirrored).Backend.List(ctx, "/", "0", 0, revision, false)
	if err == nil {
		b.mirror.load(revision, kvs)
	}
	return err
}
