package engine

import (
	"context"
	"database/sql"
	"fmt"
	"os"
)

// A slice of a copy ends with the row that makes it this large, so that a write never waits for more than that to be read.
const (
	copyRows  = 64
	copyBytes = 128 << 10
)

// Content is what a copy holds: live keys alone, as of a revision.
type Content struct {
	Revision int64
	Keys     int64
}

// Copy writes the store as it is now to a new database at path, which Open takes. It has the live keys with their revisions
// and nothing that is compacted or free. Writes go on meanwhile: between small slices, and without being in the
// copy. The file is not synced.
func (e *Engine) Copy(ctx context.Context, path string) (Content, error) {
	e.copyMu.Lock()
	defer e.copyMu.Unlock()
	e.mu.Lock()
	last := e.current
	// What becomes garbage from here on does so at a later revision, and stays.
	e.copying.Store(last)
	e.mu.Unlock()
	defer e.copying.Store(0)
	return copyLive(ctx, e.file, last, 0, path, func(rows []row) []row {
		e.mu.RLock()
		defer e.mu.RUnlock()
		return e.index.liveOf(rows, last)
	})
}

// liveOf filters rows for those that a reader at revision sees.
func (x *index) liveOf(rows []row, revision int64) []row {
	live := rows[:0]
	for _, r := range rows {
		if n, found := x.get(r.key); found {
			if v, ok := n.at(revision); ok && v.revision == r.revision {
				live = append(live, r)
			}
		}
	}
	return live
}

// copyLive writes those rows of f up to last that live picks to a new database at path, with shift added to their revisions.
func copyLive(ctx context.Context, f *file, last, shift int64, path string, live func([]row) []row) (Content, error) {
	to, err := newTarget(ctx, path)
	if err != nil {
		return Content{}, err
	}
	c := Content{Revision: last + shift}
	for next := int64(1); next <= last && err == nil; {
		var rows []row
		if rows, err = f.slice(next, last); err != nil || len(rows) == 0 {
			break
		}
		next = rows[len(rows)-1].revision + 1
		rows = live(rows)
		c.Keys += int64(len(rows))
		if err = to.add(rows, shift); err == nil {
			err = ctx.Err()
		}
	}
	return c, to.finish(c.Revision, err)
}

// slice reads some revisions from first on and not after last, none when there are none.
func (f *file) slice(first, last int64) ([]row, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rows, err := f.conn.QueryContext(background,
		"SELECT revision, key, count, created, lease, value FROM log WHERE revision BETWEEN ? AND ? ORDER BY revision LIMIT ?", first, last, copyRows)
	if err != nil {
		return nil, f.explain(err)
	}
	defer rows.Close()
	var all []row
	for bytes := 0; bytes < copyBytes && rows.Next(); {
		var r row
		if err := rows.Scan(&r.revision, &r.key, &r.count, &r.created, &r.lease, &r.value); err != nil {
			return nil, f.explain(err)
		}
		all = append(all, r)
		bytes += len(r.value)
	}
	if err := rows.Err(); err != nil {
		return nil, f.explain(err)
	}
	return all, nil
}

// target is a database that is filled once. It has no journal: what is left after a failure is of no use.
type target struct{ file }

var targetPragmas = []string{
	"locking_mode = EXCLUSIVE", "auto_vacuum = INCREMENTAL", "journal_mode = OFF", "synchronous = OFF", "cache_size = -4096",
}

// newTarget makes the database at path, which must not be there yet. finish must be called in the end.
func newTarget(ctx context.Context, path string) (*target, error) {
	empty, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make copy of datastore: %w", err)
	}
	if err := empty.Close(); err != nil {
		return nil, fmt.Errorf("make copy of datastore: %w", err)
	}
	db, err := sql.Open("sqlite", location(path))
	if err != nil {
		return nil, err
	}
	t := &target{file{path: path, db: db}}
	if err := t.start(ctx); err != nil {
		t.close()
		return nil, t.explain(err)
	}
	return t, nil
}

func (t *target) start(ctx context.Context) (err error) {
	if t.conn, err = t.db.Conn(ctx); err != nil {
		return err
	}
	for _, p := range targetPragmas {
		if _, err := t.conn.ExecContext(ctx, "PRAGMA "+p); err != nil {
			return fmt.Errorf("set %s: %w", p, err)
		}
	}
	if _, err := t.conn.ExecContext(ctx, "BEGIN;"+schema); err != nil {
		return fmt.Errorf("make tables: %w", err)
	}
	t.insert, err = t.conn.PrepareContext(ctx, insertRow)
	return err
}

func (t *target) add(rows []row, shift int64) error {
	for _, r := range rows {
		if _, err := t.insert.ExecContext(background, r.revision+shift, r.key, r.count, r.created+shift, r.lease, r.value); err != nil {
			return t.explain(err)
		}
	}
	return nil
}

// finish closes the database after err, or without one as a store that is compacted up to its last revision.
func (t *target) finish(revision int64, err error) error {
	defer t.close()
	if err != nil {
		return err
	}
	if _, err := t.conn.ExecContext(background, "UPDATE meta SET value = ? WHERE name = 'compacted'; COMMIT", revision); err != nil {
		return t.explain(err)
	}
	return nil
}
