package engine

import (
	"context"
	"database/sql"
	"fmt"
)

// Record is a live key, as it is copied from one datastore to another.
type Record struct {
	Key      string
	Value    []byte
	Revision int64 // of its last write
	Created  int64 // the revision that made it
	Lease    int64 // seconds that it lives after being written or read in; 0 is for ever
}

// Live hands each the live keys of an engine's file, in any order, and returns the last revision.
func Live(ctx context.Context, tx *sql.Tx, each func(Record) error) (revision int64, err error) {
	if err := tx.QueryRowContext(ctx, "SELECT MAX((SELECT COALESCE(MAX(revision), 0) FROM log), value) FROM meta WHERE name = 'compacted'").Scan(&revision); err != nil {
		return 0, fmt.Errorf("read last revision: %w", err)
	}
	rows, err := tx.QueryContext(ctx, "SELECT key, revision, created, lease, value FROM log WHERE revision IN (SELECT MAX(revision) FROM log GROUP BY key) AND count > 0")
	if err != nil {
		return 0, fmt.Errorf("read keys: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var r Record
		if err := rows.Scan(&r.Key, &r.Revision, &r.Created, &r.Lease, &r.Value); err != nil {
			return 0, fmt.Errorf("read key: %w", err)
		}
		if err := each(r); err != nil {
			return 0, err
		}
	}
	return revision, rows.Err()
}

// Fill makes the file at path, which should not be there yet, with the keys that records yields, each with a revision of its
// own. Everything up to revision, which is none of theirs or less, counts as compacted, so that nobody takes up an old watch.
func Fill(ctx context.Context, path string, revision int64, records func(yield func(Record) error) error) error {
	f, err := openFile(ctx, path)
	if err != nil {
		return err
	}
	defer f.close()
	err = f.in(func() error {
		if _, err := f.conn.ExecContext(ctx, "DELETE FROM log"); err != nil {
			return err
		}
		put := func(r Record) error {
			if r.Value == nil {
				r.Value = []byte{}
			}
			_, err := f.insert.ExecContext(ctx, r.Revision, r.Key, 1, r.Created, r.Lease, r.Value)
			return err
		}
		if err := records(put); err != nil {
			return err
		}
		if err := put(Record{Key: healthKey, Value: []byte(healthValue), Revision: revision + 1, Created: revision + 1}); err != nil {
			return err
		}
		_, err := f.conn.ExecContext(ctx, "UPDATE meta SET value = ? WHERE name = 'compacted'", revision+1)
		return err
	})
	if err != nil {
		return f.explain(err)
	}
	return nil
}
