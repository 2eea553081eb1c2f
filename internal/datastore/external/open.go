package external

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/k3s-io/kine/pkg/drivers"
	"github.com/k3s-io/kine/pkg/drivers/generic"
	"github.com/k3s-io/kine/pkg/drivers/mysql"
	"github.com/k3s-io/kine/pkg/drivers/nats"
	"github.com/k3s-io/kine/pkg/drivers/pgsql"
	"github.com/k3s-io/kine/pkg/server"
	kinetls "github.com/k3s-io/kine/pkg/tls"

	"github.com/clusterd/clusterd/internal/datastore/endpoint"
)

// What the drivers are told. Connections: an API server needs about ten at once, and PostgreSQL allows a hundred to all of
// its clients; one that was not used for a while, or is old, is closed, so that a database which has moved is found.
// Polling finds what other servers write, our own writes are looked for at once. Compaction is done by Backend.compact.
const (
	openConnections = 25
	idleConnections = 10
	connectionIdle  = 5 * time.Minute
	connectionLife  = time.Hour
	pollInterval    = time.Second
	pollBatch       = 500
	compactTimeout  = 5 * time.Second
	compactBatch    = 1000
	// compactRetain is how many revisions are kept however old they are.
	compactRetain = 1000
)

func constructor(k endpoint.Kind) (drivers.Constructor, error) {
	switch k {
	case endpoint.Postgres:
		return pgsql.New, nil
	case endpoint.MySQL:
		return mysql.New, nil
	case endpoint.NATS:
		return nats.New, nil
	}
	return nil, fmt.Errorf("there is no driver for %s", k)
}

// Open waits for the database, makes what is missing in it, and starts to follow it. Close must be called in the end.
func Open(ctx context.Context, e endpoint.Endpoint, log *slog.Logger) (*Backend, error) {
	if err := Wait(ctx, e, log); err != nil {
		return nil, err
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	b := &Backend{log: log, endpoint: e, life: life, stop: stop, failed: make(chan error, 1)}
	b.feed = newFeed(b)
	err := retry(ctx, e, log, func(context.Context) error { return b.start(ctx) })
	if err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// start makes the driver and what it needs in the database.
func (b *Backend) start(ctx context.Context) error {
	life, stop := context.WithCancel(b.life)
	unless := context.AfterFunc(ctx, stop) // the drivers heed only the context of their whole life
	err := guarded(func() (err error) {
		if b.kine, err = b.connect(life); err != nil {
			return err
		}
		if err := keepNames(life, b.endpoint); err != nil {
			return err
		}
		if b.endpoint.Kind == endpoint.NATS {
			b.mirror = newMirror(func(key string, revision int64) error { return b.expire(life, key, revision) })
			b.kine = &mirrored{b.kine, b, b.mirror}
			b.writes = b.kine
			return b.kine.Start(life)
		}
		if b.table, err = tableOf(b.kine); err != nil {
			return refusal{err}
		}
		b.writes = b.table
		return b.kine.Start(life)
	})
	if err == nil && unless() {
		err = b.prove(life)
	}
	if err != nil || life.Err() != nil {
		stop()
		b.drivers.Wait()
		return errors.Join(err, ctx.Err())
	}
	b.running.Go(b.compact)
	if b.mirror != nil {
		b.running.Go(func() { b.mirror.leases.Run(life.Done()) })
	}
	return nil
}

// prove starts the feed and sees a write come out of it.
func (b *Backend) prove(life context.Context) error {
	if err := b.feed.start(life); err != nil {
		return err
	}
	// The first write only makes the driver's poller get ready, so that its event would come a second later.
	for began := time.Now(); time.Since(began) < tryTimeout; {
		at, err := b.touch(life)
		if err != nil {
			return fmt.Errorf("write health key: %w", err)
		}
		if b.feed.await(life, at, syncLimit) {
			return nil
		}
	}
	return errors.New("a write was not told of")
}

func (b *Backend) connect(life context.Context) (server.Backend, error) {
	construct, err := constructor(b.endpoint.Kind)
	if err != nil {
		return nil, refusal{err}
	}
	_, kine, err := construct(life, &b.drivers, &drivers.Config{
		Endpoint: b.endpoint.DSN, DataSourceName: dataSource(b.endpoint), BackendTLSConfig: tlsOf(b.endpoint),
		ConnectionPoolConfig: generic.ConnectionPoolConfig{MaxIdle: idleConnections, MaxOpen: openConnections,
			MaxIdleTime: connectionIdle, MaxLifetime: connectionLife},
		PollInterval: pollInterval, PollBatchSize: pollBatch,
		CompactTimeout: compactTimeout, CompactBatchSize: compactBatch, CompactMinRetain: compactRetain,
	})
	return kine, err
}

// guarded runs work that a driver may want to end by ending the process: see hook.
func guarded(work func() error) error {
	err := errors.New("the driver gave up")
	var done sync.WaitGroup
	done.Go(func() { err = work() })
	done.Wait()
	return err
}

func tlsOf(e endpoint.Endpoint) kinetls.Config {
	if e.TLS == nil {
		return kinetls.Config{} // none, or part of the data source name
	}
	return kinetls.Config{CAFile: e.Files.CA, CertFile: e.Files.Cert, KeyFile: e.Files.Key}
}

// expire removes a key that is still at revision. The driver has no error when the database takes no writes: it says that the
// key is as it was.
func (b *Backend) expire(ctx context.Context, key string, revision int64) error {
	_, kv, gone, err := b.Delete(ctx, key, revision)
	if err == nil && !gone && kv != nil && kv.ModRevision == revision {
		return fmt.Errorf("remove %s: the database has not", key)
	}
	return err
}
