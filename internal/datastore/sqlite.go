package datastore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/k3s-io/kine/pkg/drivers"
	"github.com/k3s-io/kine/pkg/drivers/generic"
	"github.com/k3s-io/kine/pkg/drivers/sqlite"
	_ "modernc.org/sqlite" // registers the "sqlite" driver that probe uses
)

// params is how each connection is opened. The start-up VACUUM is off: it
// rewrites the whole file at every start, and freed pages are used again anyway.
// The WAL is cut back to 16 MiB once a checkpoint has emptied it.
const params = "_journal_mode=WAL&_synchronous=FULL&_busy_timeout=30000&_txlock=immediate" +
	"&_pragma=journal_size_limit(16777216)&_kine_disable_startup_vacuum=true"

const (
	// compactInterval, compactRetain and compactBatch bound the history as an
	// etcd behind an API server has it: old revisions go after five to ten
	// minutes, and no transaction holds the file for long.
	compactInterval = 5 * time.Minute
	compactTimeout  = 5 * time.Second
	compactRetain   = 10
	compactBatch    = 1000
	// pollInterval is the safety net behind the wake-up that each write gives.
	pollInterval = 30 * time.Second
	pollBatch    = 500
	// maxConns and idleConns bound the page caches, of up to 2 MiB each. One is
	// always taken by the reader of the log.
	maxConns  = 16
	idleConns = 4
)

// synchronousFull is what PRAGMA synchronous answers when each commit is synced.
const synchronousFull = 2

// database is the open file and kine's engine on it.
type database struct {
	backend *backend
	sql     *sql.DB
	cancel  context.CancelFunc
	wg      sync.WaitGroup
}

// open opens or makes the file at path and starts the engine. It lives until
// close, not until ctx ends, so that calls under way can finish.
func open(ctx context.Context, path string, log *slog.Logger) (*database, error) {
	if err := prepareFile(path); err != nil {
		return nil, err
	}
	if err := probe(ctx, path); err != nil {
		return nil, fmt.Errorf("open datastore %s: %w", path, err)
	}
	engine, cancel := context.WithCancel(context.WithoutCancel(ctx))
	db := &database{cancel: cancel}
	inner, dialect, err := sqlite.NewVariant(engine, &db.wg, "sqlite3", engineConfig(path))
	if err != nil {
		db.close()
		return nil, fmt.Errorf("prepare datastore %s: %w", path, err)
	}
	db.sql = dialect.DB
	db.backend = newBackend(inner)
	if err := db.start(ctx, engine, log); err != nil {
		db.close()
		return nil, fmt.Errorf("start datastore %s: %w", path, err)
	}
	return db, nil
}

func (d *database) start(ctx, engine context.Context, log *slog.Logger) error {
	if err := checkDurable(ctx, d.sql, log); err != nil {
		return err
	}
	if err := d.backend.Start(engine); err != nil {
		return err
	}
	d.wg.Go(func() { d.backend.chase(engine) })
	return nil
}

// close ends the engine and closes the file, which folds the WAL into it.
func (d *database) close() {
	d.cancel()
	d.wg.Wait()
}

// prepareFile makes an empty file that only root may read, since it holds
// secrets; SQLite gives its WAL the same mode.
func prepareFile(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make folder of datastore: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open datastore: %w", err)
	}
	if err := errors.Join(f.Chmod(0o600), f.Close()); err != nil {
		return fmt.Errorf("protect datastore: %w", err)
	}
	return nil
}

// probe reads the file's header, so that a damaged file is one error at once:
// kine would try to open it for five minutes.
func probe(ctx context.Context, path string) error {
	db, err := sql.Open("sqlite", "file://"+escapePath(path)+"?_pragma=busy_timeout(30000)")
	if err != nil {
		return err
	}
	var version int
	err = db.QueryRowContext(ctx, "PRAGMA schema_version").Scan(&version)
	return errors.Join(err, db.Close())
}

func engineConfig(path string) *drivers.Config {
	return &drivers.Config{
		DataSourceName:       escapePath(path) + "?" + params,
		ConnectionPoolConfig: generic.ConnectionPoolConfig{MaxIdle: idleConns, MaxOpen: maxConns},
		CompactInterval:      compactInterval,
		CompactTimeout:       compactTimeout,
		CompactMinRetain:     compactRetain,
		CompactBatchSize:     compactBatch,
		PollInterval:         pollInterval,
		PollBatchSize:        pollBatch,
	}
}

// escapePath makes path safe inside the file: URI which SQLite is given.
func escapePath(path string) string {
	return strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(path)
}

// checkDurable refuses a database whose commits would not wait for the disk.
// Some file systems cannot do WAL; the fallback is slower but as safe.
func checkDurable(ctx context.Context, db *sql.DB, log *slog.Logger) error {
	var journal string
	var synchronous int
	if err := db.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&journal); err != nil {
		return fmt.Errorf("read journal mode: %w", err)
	}
	if err := db.QueryRowContext(ctx, "PRAGMA synchronous").Scan(&synchronous); err != nil {
		return fmt.Errorf("read synchronous mode: %w", err)
	}
	if synchronous < synchronousFull {
		return fmt.Errorf("commits do not wait for the disk: synchronous is %d", synchronous)
	}
	if journal != "wal" {
		log.Warn("The file system does not support WAL, writes will be slow", "journal", journal)
	}
	return nil
}
