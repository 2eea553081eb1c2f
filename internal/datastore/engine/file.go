package engine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	sqlite "modernc.org/sqlite"
)

// The result codes of SQLite that are told apart: https://www.sqlite.org/rescode.html.
const (
	codeBusy    = 5
	codeCorrupt = 11
	codeFull    = 13
	codeNotDB   = 26
	codeMask    = 0xff // extended codes have the primary one in the low byte
)

// pragmas are set in this order: the lock comes before the first use of the write-ahead log, so that its index is in
// memory and not in a shared file, and auto_vacuum before the first table. A commit syncs the log before it returns. The log
// is folded back after about 500 pages, so that the write that has to wait for it does not wait long, and its file cut to
// 16 MiB if one transaction made it larger. Pages are cached for the tree's inner ones and a transaction's own: values have a
// cache of their own.
var pragmas = []string{
	"busy_timeout = 10000",
	"locking_mode = EXCLUSIVE",
	"auto_vacuum = INCREMENTAL",
	"journal_mode = WAL",
	"synchronous = FULL",
	"wal_autocheckpoint = 500",
	"journal_size_limit = 16777216",
	"cache_size = -1024",
	"temp_store = MEMORY",
}

// schema is the file of a new store. Its first revision is the key by which API servers ask for health.
const schema = `
CREATE TABLE log (
	revision INTEGER PRIMARY KEY,
	key      TEXT NOT NULL,
	count    INTEGER NOT NULL, -- writes since created; 0 for a deletion
	created  INTEGER NOT NULL,
	lease    INTEGER NOT NULL,
	value    BLOB NOT NULL     -- last, so that a scan of the others does not read it
);
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('format', 1), ('compacted', 0);
`

// format is the only layout of the file so far.
const format = 1

// file is the SQLite database, behind one connection.
type file struct {
	path string
	db   *sql.DB
	mu   sync.Mutex // SQLite would serialise calls too, but not a statement with its rows
	conn *sql.Conn

	begin, commit, rollback, insert, read *sql.Stmt
}

// openFile opens or makes the database at path, readable by its owner alone.
func openFile(ctx context.Context, path string) (*file, error) {
	if err := prepare(path); err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", location(path)+"?_txlock=immediate")
	if err != nil {
		return nil, err
	}
	f := &file{path: path, db: db}
	if err := f.setUp(ctx); err != nil {
		f.close()
		return nil, f.explain(err)
	}
	return f, nil
}

// location is path as SQLite takes it.
func location(path string) string {
	return "file://" + strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(path)
}

// prepare makes an empty file that only its owner may read, since it holds secrets; SQLite gives its log the same mode.
func prepare(path string) error {
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

// explain adds to errors of SQLite what can be done about them.
func (f *file) explain(err error) error {
	switch code(err) {
	case codeBusy:
		return fmt.Errorf("datastore %s: another process has it open; end that one (fuser %[1]s names it): %w", f.path, err)
	case codeCorrupt, codeNotDB:
		return fmt.Errorf("datastore %s is damaged; put a snapshot in its place with clusterd snapshot restore: %w", f.path, err)
	case codeFull:
		return fmt.Errorf("datastore %s: the disk is full: %w", f.path, err)
	}
	return fmt.Errorf("datastore %s: %w", f.path, err)
}

// code is SQLite's primary result code, 0 for other errors.
func code(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & codeMask
	}
	return 0
}

func (f *file) setUp(ctx context.Context) error {
	var err error
	if f.conn, err = f.db.Conn(ctx); err != nil {
		return err
	}
	for _, p := range pragmas {
		if _, err := f.conn.ExecContext(ctx, "PRAGMA "+p); err != nil {
			return fmt.Errorf("set %s: %w", p, err)
		}
	}
	if err := f.checkDurable(ctx); err != nil {
		return err
	}
	if err := f.create(ctx); err != nil {
		return err
	}
	for statement, text := range map[**sql.Stmt]string{
		&f.begin: "BEGIN IMMEDIATE", &f.commit: "COMMIT", &f.rollback: "ROLLBACK", &f.insert: insertRow, &f.read: readValues,
	} {
		if *statement, err = f.conn.PrepareContext(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

const (
	insertRow  = "INSERT INTO log (revision, key, count, created, lease, value) VALUES (?, ?, ?, ?, ?, ?)"
	readValues = "SELECT log.revision, log.value FROM json_each(?) AS wanted CROSS JOIN log ON log.revision = wanted.value"
)

// synchronousFull is what PRAGMA synchronous answers when each commit is synced.
const synchronousFull = 2

// checkDurable refuses a database whose commits would not wait for the disk.
func (f *file) checkDurable(ctx context.Context) error {
	var synchronous int
	if err := f.conn.QueryRowContext(ctx, "PRAGMA synchronous").Scan(&synchronous); err != nil {
		return fmt.Errorf("read synchronous mode: %w", err)
	}
	if synchronous < synchronousFull {
		return fmt.Errorf("commits do not wait for the disk: synchronous is %d", synchronous)
	}
	return nil
}

// create fills a new file, and moves what an earlier version of clusterd kept in kine's table.
func (f *file) create(ctx context.Context) error {
	is, err := f.tables(ctx)
	if err != nil {
		return err
	}
	if is["meta"] {
		var found int
		if err := f.conn.QueryRowContext(ctx, "SELECT value FROM meta WHERE name = 'format'").Scan(&found); err != nil {
			return fmt.Errorf("read format: %w", err)
		}
		if found != format {
			return fmt.Errorf("format %d is of a later version of clusterd", found)
		}
		return nil
	}
	tx, err := f.conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	fill := fmt.Sprintf("INSERT INTO log VALUES (1, '%s', 1, 1, 0, '%s')", healthKey, healthValue)
	if is["kine"] {
		fill = moveKine
	}
	for _, statement := range []string{schema, fill} {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("make tables: %w", err)
		}
	}
	return tx.Commit()
}

// moveKine takes over the live keys of a kine table with their revisions. All before is compacted: no one has a watch open.
// The last revision stays, also if it was a deletion, for revisions must never go back.
const moveKine = `
INSERT INTO log
	SELECT id, name, 1, CASE WHEN created THEN id ELSE create_revision END, COALESCE(lease, 0), COALESCE(value, x'') FROM kine
	WHERE id IN (SELECT MAX(id) FROM kine GROUP BY name) AND NOT deleted AND name <> 'compact_rev_key' AND name NOT LIKE 'gap-%';
UPDATE meta SET value = (SELECT MAX(id) FROM kine) WHERE name = 'compacted';
DROP TABLE kine;
`

func (f *file) tables(ctx context.Context) (map[string]bool, error) {
	rows, err := f.conn.QueryContext(ctx, "SELECT name FROM sqlite_master WHERE type = 'table'")
	if err != nil {
		return nil, fmt.Errorf("read tables: %w", err)
	}
	defer rows.Close()
	is := map[string]bool{}
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, fmt.Errorf("read tables: %w", err)
		}
		is[name] = true
	}
	return is, rows.Err()
}

// close folds the log back and closes the file.
func (f *file) close() {
	for _, statement := range []*sql.Stmt{f.begin, f.commit, f.rollback, f.insert, f.read} {
		if statement != nil {
			_ = statement.Close()
		}
	}
	if f.conn != nil {
		_ = f.conn.Close()
	}
	_ = f.db.Close()
}

// row is a revision in the file.
type row struct {
	key string
	version
	value []byte
}

// scan reads every revision without its value, in order, and then the compacted revision.
func (f *file) scan(ctx context.Context, each func(key string, v version)) (compacted int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rows, err := f.conn.QueryContext(ctx, "SELECT revision, key, count, created, lease FROM log ORDER BY revision")
	if err != nil {
		return 0, f.explain(err)
	}
	defer rows.Close()
	for rows.Next() {
		var r row
		if err := rows.Scan(&r.revision, &r.key, &r.count, &r.created, &r.lease); err != nil {
			return 0, f.explain(err)
		}
		each(r.key, r.version)
	}
	if err := rows.Err(); err != nil {
		return 0, f.explain(err)
	}
	if err := f.conn.QueryRowContext(ctx, "SELECT value FROM meta WHERE name = 'compacted'").Scan(&compacted); err != nil {
		return 0, f.explain(err)
	}
	return compacted, nil
}

// The calls below have no context: a statement is short, and SQLite would be interrupted by a goroutine for each.
var background = context.Background()

// in does work on f's connection in one transaction, which is on disk when it returns nil. A sql.Tx would parse what it runs
// each time.
func (f *file) in(work func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.begin.ExecContext(background); err != nil {
		return err
	}
	err := work()
	if err == nil {
		_, err = f.commit.ExecContext(background)
	}
	if err != nil {
		_, _ = f.rollback.ExecContext(background) // an error when SQLite has done so by itself
	}
	return err
}

// append writes revisions and, unless it is 0, the compacted revision.
func (f *file) append(rows []row, compacted int64) error {
	return f.in(func() error {
		for _, r := range rows {
			value := r.value
			if value == nil {
				value = []byte{}
			}
			if _, err := f.insert.ExecContext(background, r.revision, r.key, r.count, r.created, r.lease, value); err != nil {
				return err
			}
		}
		if compacted == 0 {
			return nil
		}
		_, err := f.conn.ExecContext(background, "UPDATE meta SET value = ? WHERE name = 'compacted'", compacted)
		return err
	})
}

// last is the highest revision in the file.
func (f *file) last() (revision int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	err = f.conn.QueryRowContext(background, "SELECT MAX((SELECT COALESCE(MAX(revision), 0) FROM log), (SELECT value FROM meta WHERE name = 'compacted'))").Scan(&revision)
	return revision, err
}

// after reads up to limit revisions from first on.
func (f *file) after(first int64, limit int) ([]row, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rows, err := f.conn.QueryContext(background, "SELECT revision, key, count, created, lease, value FROM log WHERE revision >= ? ORDER BY revision LIMIT ?", first, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []row
	for rows.Next() {
		var r row
		if err := rows.Scan(&r.revision, &r.key, &r.count, &r.created, &r.lease, &r.value); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, rows.Err()
}

// remove deletes revisions.
func (f *file) remove(revisions []int64) error {
	return f.in(func() error {
		_, err := f.conn.ExecContext(background, "DELETE FROM log WHERE revision IN (SELECT value FROM json_each(?))", list(revisions))
		return err
	})
}

// pages tells the number of pages of the file, how many of them are free, and the bytes of one.
func (f *file) pages() (all, free, size int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	err = f.conn.QueryRowContext(background, "SELECT page_count, freelist_count, page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size").Scan(&all, &free, &size)
	return all, free, size, err
}

// shrink gives up to n free pages back.
func (f *file) shrink(n int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	rows, err := f.conn.QueryContext(background, fmt.Sprintf("PRAGMA incremental_vacuum(%d)", n))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() { // each step frees one page
	}
	return rows.Err()
}

// fold copies the write-ahead log back into the file, which gets as short as it can then.
func (f *file) fold() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var busy, log, copied int
	return f.conn.QueryRowContext(background, "PRAGMA wal_checkpoint(PASSIVE)").Scan(&busy, &log, &copied)
}
