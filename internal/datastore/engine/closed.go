package engine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
)

// The functions here are for databases that no Engine has open.

// CopyClosed copies a database that may be of an earlier layout, as it is and without changing it, to a new file at path to,
// which is not synced.
func CopyClosed(ctx context.Context, path, to string) (Content, error) {
	var c Content
	err := closed(ctx, path, "mode=rw", func(f *file) (err error) {
		if c, err = f.content(ctx); err != nil {
			return err
		}
		if _, err = f.conn.ExecContext(ctx, "VACUUM INTO ?", to); err != nil {
			return fmt.Errorf("copy to %s: %w", to, err)
		}
		return nil
	})
	return c, err
}

// Inspect reads a whole database and tells what it holds. The error names what is damaged.
func Inspect(ctx context.Context, path string) (Content, error) {
	var c Content
	err := closed(ctx, path, "mode=rw", func(f *file) (err error) {
		var result string
		if err := f.conn.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&result); err != nil {
			return err
		}
		if result != "ok" {
			return fmt.Errorf("damaged: %s", result)
		}
		c, err = f.content(ctx)
		return err
	})
	return c, err
}

// Revision is the last revision in a database file, which may be damaged and is not touched. What is in its write-ahead log
// alone, after a kill, does not count.
func Revision(ctx context.Context, path string) (revision int64, err error) {
	err = closed(ctx, path, "immutable=1", func(f *file) error {
		c, err := f.content(ctx)
		revision = c.Revision
		return err
	})
	return revision, err
}

// Rewrite copies what lives in the database at path, with shift added to every revision, to a new one at path to and syncs it.
// An earlier layout becomes the current one, in the database at path too.
func Rewrite(ctx context.Context, path, to string, shift int64) (Content, error) {
	f, err := openFile(ctx, path)
	if err != nil {
		return Content{}, err
	}
	defer f.close()
	x := newIndex()
	if _, err := f.scan(ctx, x.add); err != nil {
		return Content{}, err
	}
	last, err := f.last()
	if err != nil {
		return Content{}, f.explain(err)
	}
	c, err := copyLive(ctx, f, last, shift, to, func(rows []row) []row { return x.liveOf(rows, last) })
	if err != nil {
		return Content{}, err
	}
	return c, syncFile(to)
}

func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("sync copy of datastore: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("sync copy of datastore: %w", err)
	}
	return nil
}

// closed opens the database at path, which must be there, for work. How is a parameter of SQLite's.
func closed(ctx context.Context, path, how string, work func(*file) error) error {
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("open datastore: %w", err)
	}
	db, err := sql.Open("sqlite", location(path)+"?"+how)
	if err != nil {
		return err
	}
	f := &file{path: path, db: db}
	defer f.close()
	if f.conn, err = db.Conn(ctx); err == nil {
		// As in setUp, so that there is no index of the log in a shared file.
		_, err = f.conn.ExecContext(ctx, "PRAGMA locking_mode = EXCLUSIVE")
	}
	if err == nil {
		err = work(f)
	}
	if code(err) == codeCorrupt || code(err) == codeNotDB { // what to do about that depends on whose the file is
		return fmt.Errorf("datastore %s is damaged: %w", path, err)
	}
	if err != nil {
		return f.explain(err)
	}
	return nil
}

// content counts what is in the database, also in kine's layout.
func (f *file) content(ctx context.Context) (c Content, err error) {
	is, err := f.tables(ctx)
	if err != nil {
		return c, err
	}
	count := liveKeys
	switch {
	case is["meta"]:
	case is["kine"]:
		count = liveKine
	default:
		return c, errors.New("it has no tables of a datastore")
	}
	err = f.conn.QueryRowContext(ctx, count).Scan(&c.Revision, &c.Keys)
	return c, err
}

// liveKeys and liveKine read the last revision and the number of keys.
const (
	liveKeys = `
SELECT MAX((SELECT COALESCE(MAX(revision), 0) FROM log), (SELECT value FROM meta WHERE name = 'compacted')),
	(SELECT COUNT(*) FROM log WHERE count <> 0 AND revision IN (SELECT MAX(revision) FROM log GROUP BY key))`
	liveKine = `
SELECT COALESCE(MAX(id), 0), (SELECT COUNT(*) FROM kine
	WHERE id IN (SELECT MAX(id) FROM kine GROUP BY name) AND NOT deleted AND name <> 'compact_rev_key' AND name NOT LIKE 'gap-%')
FROM kine`
)
