package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/k3s-io/kine/pkg/server"

	"github.com/clusterd/clusterd/internal/datastore/expiry"
)

// healthKey is there from the first revision on.
const (
	healthKey   = server.HealthKey
	healthValue = server.HealthVal
)

// defaultCacheBytes bounds the values in memory, which are those that were written or got last, without what has been replaced.
// It is room for all of a small cluster: a list that finds its values here takes a fifth of the time.
const defaultCacheBytes = 16 << 20

// defaultRetain is what API servers ask of etcd: a client that was away for less can go on where it was.
const defaultRetain = 5 * time.Minute

// Config says where the store is and what it may use.
type Config struct {
	// Path is the database file, required. It and its folder are made when missing.
	Path string
	// CacheBytes bounds the memory for values, 16 MiB when 0.
	CacheBytes int
	// Retain is how long at least revisions stay readable after newer ones, 5 minutes when 0. They stay up to twice as long
	// while something is written, else until something is.
	Retain time.Duration
	// Log gets what an operator should know, required.
	Log *slog.Logger

	diskPeriod time.Duration // for tests
}

// Engine is an open store. All methods may be called at the same time.
type Engine struct {
	log    *slog.Logger
	file   *file
	cache  *cache
	retain time.Duration

	mu        sync.RWMutex // guards what follows; publishing to watchers happens below it too
	index     *index
	current   int64 // the last revision on disk
	compacted int64 // reads below it are refused
	watches   map[*Watch]struct{}
	closed    bool

	inbox   *inbox
	leases  *expiry.Leases
	ending  chan struct{}
	running sync.WaitGroup
	failed  chan error

	copyMu  sync.Mutex   // held by the one copy that is made at a time
	copying atomic.Int64 // its revision, 0 without one: what was current then is not removed

	writer writer // for the goroutine of writeAll alone
	counts counts
}

// mark is a revision that may be compacted when it is as old as revisions are retained.
type mark struct {
	revision int64
	at       time.Time
}

// writer is what the writing goroutine remembers.
type writer struct {
	broken    bool      // it is unknown what is on disk, so nothing may follow
	refused   bool      // the last transaction failed
	sliceSize int       // revisions that the next slice of compaction removes
	dirty     bool      // revisions were removed since free pages were last looked at
	given     int64     // bytes by which the file will be shorter after the next checkpoint
	rest      time.Time // no compaction before
	resting   bool      // there is some to do then
	mark      mark
	disk      disk
}

var _ server.Backend = (*Engine)(nil)

// Open opens or makes the store and reads its keys. Errors name the file and the remedy. Close must be called in the end.
func Open(ctx context.Context, c Config) (*Engine, error) {
	if c.CacheBytes == 0 {
		c.CacheBytes = defaultCacheBytes
	}
	if c.Retain == 0 {
		c.Retain = defaultRetain
	}
	if c.diskPeriod == 0 {
		c.diskPeriod = diskPeriod
	}
	f, err := openFile(ctx, c.Path)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		log: c.Log, file: f, cache: newCache(c.CacheBytes), retain: c.Retain, index: newIndex(), watches: map[*Watch]struct{}{},
		inbox: newInbox(), ending: make(chan struct{}), failed: make(chan error, 1),
		writer: writer{sliceSize: minSlice},
	}
	e.leases = expiry.New(func(key string, revision int64) error {
		_, _, _, err := e.Delete(background, key, revision)
		return err
	})
	e.writer.mark.at = time.Now()
	e.writer.disk.period = c.diskPeriod
	if err := e.load(ctx); err != nil {
		f.close()
		return nil, err
	}
	e.running.Go(e.writeAll)
	e.running.Go(func() { e.leases.Run(e.ending) })
	return e, nil
}

// load reads the index. The scan sees every page of the table, so it finds damage in its structure too.
func (e *Engine) load(ctx context.Context) error {
	began := time.Now()
	compacted, err := e.file.scan(ctx, func(key string, v version) {
		e.index.add(key, v)
		e.current = v.revision
	})
	if err != nil {
		return err
	}
	e.compacted = compacted
	e.current = max(e.current, compacted)
	if e.current == 0 {
		return fmt.Errorf("datastore %s has no revision at all; put a snapshot in its place with clusterd snapshot restore", e.file.path)
	}
	e.index.ascend("", "", func(n *node) bool {
		if v := n.latest(); v.lease > 0 {
			e.leases.Add(n.key, v.revision, int64(v.lease), began)
		}
		return true
	})
	e.log.Debug("read the datastore's keys", "took", time.Since(began))
	return nil
}

// Close ends watches and writes that are not yet on disk, and closes the file.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closed = true
	for w := range e.watches {
		w.fail(errClosed)
	}
	e.mu.Unlock()
	close(e.ending)
	e.running.Wait()
	e.file.close()
}

// errClosed is for calls after the end.
var errClosed = errors.New("the datastore is closed")

// Failed tells of an error after which nothing can be written. The store must be closed and opened again.
func (e *Engine) Failed() <-chan error { return e.failed }

// Start does nothing: an engine works from Open to Close.
func (e *Engine) Start(context.Context) error { return nil }

// CurrentRevision is the last revision on disk. Its events and all before are queued to their watches.
func (e *Engine) CurrentRevision(context.Context) (int64, error) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.current, nil
}

// DbSize is the size of the file in bytes, free pages included.
func (e *Engine) DbSize(context.Context) (int64, error) {
	all, _, size, err := e.file.pages()
	return all * size, err
}
