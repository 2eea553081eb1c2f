package migrate

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"strings"

	"github.com/clusterd/clusterd/internal/datastore/endpoint"
	"github.com/clusterd/clusterd/internal/datastore/engine"
	"github.com/clusterd/clusterd/internal/datastore/external"
)

// The live rows of kine's table, in all of its dialects.
const (
	kineLast  = "SELECT COALESCE(MAX(id), 0) FROM kine"
	kineWhere = " FROM kine WHERE id IN (SELECT MAX(id) FROM kine GROUP BY name) AND deleted = 0"
	kineLive  = "SELECT id, name, created, create_revision, lease, value" + kineWhere
	kineCount = "SELECT COUNT(*)" + kineWhere
)

// kineTable is kine's table in a transaction.
type kineTable struct {
	tx  *sql.Tx
	end func()
}

func (k *kineTable) close() { k.end() }

func (k *kineTable) count(ctx context.Context) (n int64, err error) {
	err = k.tx.QueryRowContext(ctx, kineCount).Scan(&n)
	return n, err
}

func (k *kineTable) live(ctx context.Context, each func(engine.Record) error) (revision int64, err error) {
	if err := k.tx.QueryRowContext(ctx, kineLast).Scan(&revision); err != nil {
		return 0, fmt.Errorf("read last revision: %w", err)
	}
	rows, err := k.tx.QueryContext(ctx, kineLive)
	if err != nil {
		return 0, fmt.Errorf("read keys: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var r engine.Record
		var created, first, lease sql.NullInt64
		if err := rows.Scan(&r.Revision, &r.Key, &created, &first, &lease, &r.Value); err != nil {
			return 0, fmt.Errorf("read key: %w", err)
		}
		r.Created, r.Lease = first.Int64, lease.Int64
		if created.Int64 != 0 || r.Created == 0 {
			r.Created = r.Revision
		}
		if err := each(r); err != nil {
			return 0, err
		}
	}
	return revision, rows.Err()
}

// openKine reads the table of a database as it is now.
func openKine(ctx context.Context, e endpoint.Endpoint, log *slog.Logger) (source, error) {
	if err := external.Wait(ctx, e, log); err != nil {
		return nil, err
	}
	db, err := external.SQL(e)
	if err != nil {
		return nil, err
	}
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		db.Close()
		return nil, err
	}
	return &kineTable{tx: tx, end: func() {
		_ = tx.Rollback() // nothing was written
		db.Close()
	}}, nil
}

// database is a PostgreSQL or MySQL that is written.
type database struct {
	db       *sql.DB
	numbered bool // its parameters are $1, $2 and not ?
}

// openDatabase makes the database and the table where they are missing.
func openDatabase(ctx context.Context, e endpoint.Endpoint, log *slog.Logger) (target, error) {
	made, err := external.Open(ctx, e, log)
	if err != nil {
		return nil, err
	}
	made.Close()
	db, err := external.SQL(e)
	if err != nil {
		return nil, err
	}
	return &database{db: db, numbered: e.Kind == endpoint.Postgres}, nil
}

func (*database) keeps() bool { return true }

func (d *database) close() { d.db.Close() }

// write does all in one transaction: what it has written is there when it is checked, or not at all.
func (d *database) write(ctx context.Context, revision int64, records func(func(engine.Record) error) error, check func(source) error) (int64, error) {
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }()
	if err := d.clear(ctx, tx); err != nil {
		return 0, err
	}
	rows := &insert{tx: tx, numbered: d.numbered}
	err = records(func(r engine.Record) error {
		return rows.add(ctx, r.Revision, r.Key, r.Created == r.Revision, 0, r.Created, 0, r.Lease, r.Value)
	})
	if err != nil {
		return 0, err
	}
	// kine's mark of what is compacted, which is the last revision too.
	last := revision + 1
	if err := rows.add(ctx, last, "compact_rev_key", true, 0, 0, revision, 0, []byte{}); err != nil {
		return 0, err
	}
	if err := rows.flush(ctx); err != nil {
		return 0, err
	}
	if d.numbered { // MySQL goes on from the highest by itself
		if _, err := tx.ExecContext(ctx, "SELECT setval(pg_get_serial_sequence('kine', 'id'), $1)", last); err != nil {
			return 0, fmt.Errorf("set the sequence of revisions: %w", err)
		}
	}
	if err := check(&kineTable{tx: tx, end: func() {}}); err != nil {
		return 0, err
	}
	return last, tx.Commit()
}

// clear refuses a table that holds a cluster, and removes what an empty one has.
func (d *database) clear(ctx context.Context, tx *sql.Tx) error {
	if d.numbered {
		if _, err := tx.ExecContext(ctx, "LOCK TABLE kine IN EXCLUSIVE MODE"); err != nil {
			return fmt.Errorf("lock the table: %w", err)
		}
	}
	found := int64(0)
	if _, err := (&kineTable{tx: tx}).live(ctx, func(r engine.Record) error {
		if !own(r.Key) {
			found++
		}
		return nil
	}); err != nil {
		return err
	}
	if found > 0 {
		return notEmpty(found)
	}
	if _, err := tx.ExecContext(ctx, "DELETE FROM kine"); err != nil {
		return fmt.Errorf("empty the table: %w", err)
	}
	return nil
}

// insertRows and insertBytes bound one statement.
const (
	insertRows  = 200
	insertBytes = 1 << 20
	columns     = 8
)

// insert collects rows into statements.
type insert struct {
	tx       *sql.Tx
	numbered bool
	args     []any
	bytes    int
}

// add takes the columns id, name, created, deleted, create_revision, prev_revision, lease and value.
func (i *insert) add(ctx context.Context, id int64, name string, created bool, deleted int, first, replaced, lease int64, value []byte) error {
	made := 0
	if created {
		made = 1
	}
	if value == nil {
		value = []byte{}
	}
	i.args = append(i.args, id, name, made, deleted, first, replaced, lease, value)
	if i.bytes += len(name) + len(value); i.bytes < insertBytes && len(i.args) < insertRows*columns {
		return nil
	}
	return i.flush(ctx)
}

func (i *insert) flush(ctx context.Context) error {
	if len(i.args) == 0 {
		return nil
	}
	var b strings.Builder
	b.WriteString("INSERT INTO kine (id, name, created, deleted, create_revision, prev_revision, lease, value) VALUES ")
	for n := range i.args {
		b.WriteString(map[bool]string{true: "(", false: ""}[n%columns == 0])
		if i.numbered {
			fmt.Fprintf(&b, "$%d", n+1)
		} else {
			b.WriteString("?")
		}
		switch {
		case n == len(i.args)-1:
			b.WriteString(")")
		case n%columns == columns-1:
			b.WriteString("), ")
		default:
			b.WriteString(", ")
		}
	}
	_, err := i.tx.ExecContext(ctx, b.String(), i.args...)
	i.args, i.bytes = i.args[:0], 0
	if err != nil {
		return fmt.Errorf("insert keys: %w", err)
	}
	return nil
}
