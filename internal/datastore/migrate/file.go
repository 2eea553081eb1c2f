package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	sqlite "modernc.org/sqlite"

	"github.com/clusterd/clusterd/internal/datastore/engine"
)

// busy is SQLite's result code for a file that another process has open.
const busy = 5

// engineTable is the table of our engine in a transaction.
type engineTable struct{ kineTable }

func (e *engineTable) count(ctx context.Context) (n int64, err error) {
	err = e.tx.QueryRowContext(ctx, "SELECT COUNT(DISTINCT key) FROM log").Scan(&n)
	return n, err
}

func (e *engineTable) live(ctx context.Context, each func(engine.Record) error) (int64, error) {
	return engine.Live(ctx, e.tx, each)
}

// openFile reads an SQLite file, of our engine, kine or k3s, that nobody else has open.
func openFile(ctx context.Context, path string) (_ source, err error) {
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", "file://"+strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(path))
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	defer func() {
		if err != nil {
			db.Close()
			err = explain(path, err)
		}
	}()
	for _, pragma := range []string{"busy_timeout = 1000", "locking_mode = EXCLUSIVE"} {
		if _, err := db.ExecContext(ctx, "PRAGMA "+pragma); err != nil {
			return nil, err
		}
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	table := kineTable{tx: tx, end: func() {
		_ = tx.Rollback() // nothing was written
		db.Close()
	}}
	var ours, theirs bool
	defer func() {
		if err != nil {
			table.end()
		}
	}()
	if err = tx.QueryRowContext(ctx, "SELECT COALESCE(MAX(name = 'log'), 0), COALESCE(MAX(name = 'kine'), 0) FROM sqlite_master WHERE type = 'table'").Scan(&ours, &theirs); err != nil {
		return nil, err
	}
	switch {
	case ours:
		return &engineTable{table}, nil
	case theirs:
		return &table, nil
	}
	return nil, errors.New("it holds no datastore of clusterd, kine or k3s")
}

func explain(path string, err error) error {
	if e, ok := errors.AsType[*sqlite.Error](err); ok && e.Code()&0xff == busy {
		return fmt.Errorf("a server has it open: stop it first (fuser %s names it): %w", path, err)
	}
	return err
}

// fileTarget is a file that is made beside its place, and put there when it is whole.
type fileTarget struct{ path, draft string }

// openFileTarget refuses a file with a cluster in it.
func openFileTarget(ctx context.Context, path string) (target, error) {
	found := int64(0)
	switch old, err := openFile(ctx, path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		_, err := old.live(ctx, func(r engine.Record) error {
			if !own(r.Key) {
				found++
			}
			return nil
		})
		old.close()
		if err != nil {
			return nil, err
		}
	}
	if found > 0 {
		return nil, notEmpty(found)
	}
	return &fileTarget{path: path, draft: path + ".migration"}, nil
}

func (*fileTarget) keeps() bool { return true }

func (f *fileTarget) close() { f.remove() }

// remove takes away what an interrupted run, or this one, has left beside the file.
func (f *fileTarget) remove() {
	for _, suffix := range []string{"", "-wal", "-shm"} {
		_ = os.Remove(f.draft + suffix)
	}
}

func (f *fileTarget) write(ctx context.Context, revision int64, records func(func(engine.Record) error) error, check func(source) error) (int64, error) {
	f.remove()
	if err := engine.Fill(ctx, f.draft, revision, records); err != nil {
		return 0, err
	}
	made, err := openFile(ctx, f.draft)
	if err != nil {
		return 0, err
	}
	err = check(made)
	made.close()
	if err != nil {
		return 0, err
	}
	return revision + 1, f.place()
}

// place syncs the file and gives it its name. The log of the empty one that may be there does not belong to it.
func (f *fileTarget) place() error {
	if err := syncPath(f.draft); err != nil {
		return err
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Remove(f.path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := os.Rename(f.draft, f.path); err != nil {
		return err
	}
	return syncPath(filepath.Dir(f.path))
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}
