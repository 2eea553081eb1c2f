package engine

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"golang.org/x/sys/unix"
)

func TestFileIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "state.db")
	put(t, open(t, path), "/a", "x")
	for _, name := range []string{path, path + "-wal"} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if mode := info.Mode().Perm(); mode != 0o600 {
			t.Errorf("%s has mode %o", name, mode)
		}
	}
}

func TestPathWithSpecialCharacters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a b?c#d%20e", "state.db")
	open(t, path)
	if info, err := os.Stat(path); err != nil || info.Size() == 0 {
		t.Fatalf("the database is not at its path: %v, %v", info, err)
	}
}

func TestPragmasAreInForce(t *testing.T) {
	e := open(t, tempPath(t))
	for pragma, want := range map[string]string{
		"journal_mode": "wal", "synchronous": "2", "locking_mode": "exclusive", "auto_vacuum": "2", "journal_size_limit": "16777216",
	} {
		var got string
		if err := e.file.conn.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %q (%v), want %q", pragma, got, err, want)
		}
	}
}

// refused opens a file and wants an error with all of these words.
func refused(t *testing.T, path string, words ...string) {
	t.Helper()
	e, err := Open(t.Context(), Config{Path: path, Log: slog.New(slog.DiscardHandler)})
	if err == nil {
		e.Close()
		t.Fatal("it opened")
	}
	for _, word := range append(words, path) {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q lacks %q", err, word)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than a line: %q", err)
	}
}

func TestNotADatabase(t *testing.T) {
	path := tempPath(t)
	if err := os.WriteFile(path, []byte(strings.Repeat("not a database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, path, "damaged", "clusterd snapshot restore")
}

func TestLaterFormat(t *testing.T) {
	path := tempPath(t)
	e := open(t, path)
	if _, err := e.file.conn.ExecContext(t.Context(), "UPDATE meta SET value = 99 WHERE name = 'format'"); err != nil {
		t.Fatal(err)
	}
	e.Close()
	refused(t, path, "format 99", "later version")
}

// fill makes a store with n keys of a kilobyte, so that the table has many pages.
func fill(t *testing.T, path string, n int) {
	t.Helper()
	e := open(t, path)
	for i := range n {
		put(t, e, fmt.Sprintf("/%04d", i), strings.Repeat(fmt.Sprintf("%04d", i), 256))
	}
	e.Close()
}

// Zeroes in the middle of the file, as a disk leaves them, are found by the start.
func TestDamageIsFoundAtTheStart(t *testing.T) {
	path := tempPath(t)
	fill(t, path, 300)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	middle := len(whole) / 2 / 4096 * 4096
	copy(whole[middle:middle+4096], make([]byte, 4096))
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, path, "damaged", "clusterd snapshot restore")
}

// A write-ahead log whose end was torn off or overwritten costs at most what was not acknowledged yet.
func TestTornLog(t *testing.T) {
	path := tempPath(t)
	e := open(t, path)
	for i := range 50 {
		put(t, e, fmt.Sprintf("/%04d", i), "acknowledged")
	}
	db, wal := load(t, path), load(t, path+"-wal") // as after a power cut: nothing was folded back
	e.Close()
	for name, tail := range map[string][]byte{
		"garbage": bytes.Repeat([]byte{0xa5, 0x5a, 7}, 5000),
		"zeroes":  make([]byte, 12345),
		"copy":    wal[len(wal)/2 : len(wal)-100], // valid frames in the wrong place
	} {
		t.Run(name, func(t *testing.T) {
			path := tempPath(t)
			save(t, path, db)
			save(t, path+"-wal", append(bytes.Clone(wal), tail...))
			e := open(t, path)
			if _, n, err := e.Count(t.Context(), "/0", "/1", 0); err != nil || n != 50 {
				t.Errorf("%d keys of 50, %v", n, err)
			}
			put(t, e, "/after", "x")
		})
	}
}

func load(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func save(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// No other process can open the store, and so hold up its write-ahead log. SQLite's locks are the process's, so that
// another connection stands for it.
func TestFileIsLocked(t *testing.T) {
	path := tempPath(t)
	e := open(t, path)
	put(t, e, "/a", "x")
	other, err := sql.Open("sqlite", "file://"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.Exec("SELECT count(*) FROM log"); code(err) != codeBusy {
		t.Errorf("a reader beside the store: %v", err)
	}
}

// A full disk refuses writes, keeps reads, and is over when there is room again.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=3m"); err != nil {
		t.Skipf("mount a small file system: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "state.db")
	e := open(t, path)
	value4k := strings.Repeat("x", 4096)
	acknowledged := 0
	var full error
	for ; acknowledged < 2000; acknowledged++ {
		if _, full = e.Create(t.Context(), fmt.Sprintf("/%04d", acknowledged), []byte(value4k), 0); full != nil {
			break
		}
	}
	if !errors.Is(full, rpctypes.ErrGRPCNoSpace) {
		t.Fatalf("after %d writes: %v", acknowledged, full)
	}
	current, _ := e.CurrentRevision(t.Context())
	if current != int64(acknowledged)+1 {
		t.Errorf("the store is at %d after %d writes", current, acknowledged)
	}
	e.cache = newCache(1 << 10)
	check := func() {
		t.Helper()
		_, kvs, err := e.List(t.Context(), "/0", "/1", 0, 0, false)
		if err != nil || len(kvs) != acknowledged {
			t.Fatalf("%d keys of %d, %v", len(kvs), acknowledged, err)
		}
		for _, kv := range kvs {
			if string(kv.Value) != value4k {
				t.Fatalf("%s has another value", kv.Key)
			}
		}
	}
	check()
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if got := put(t, e, fmt.Sprintf("/%04d", acknowledged), value4k); got != current+1 {
		t.Errorf("the first revision after is %d, want %d", got, current+1)
	}
	acknowledged++
	e.Close()
	e = open(t, path)
	check()
}

// A file of kine, as earlier versions and k3s have it, is taken over with its revisions.
func TestTakesOverKine(t *testing.T) {
	path := tempPath(t)
	makeKine(t, path)
	for range 2 {
		e := open(t, path)
		current, kvs, err := e.List(t.Context(), "", "", 0, 0, false)
		if err != nil || current != 8 || len(kvs) != 3 {
			t.Fatalf("at %d: %v, %v", current, kvs, err)
		}
		if kv := kvs[0]; kv.Key != "/a" || string(kv.Value) != "two" || kv.ModRevision != 4 || kv.CreateRevision != 3 {
			t.Errorf("got %+v", kv)
		}
		if kv := kvs[1]; kv.Key != "/c" || kv.Lease != 3600 || kv.CreateRevision != 7 {
			t.Errorf("got %+v", kv)
		}
		e.Close()
	}
	if got := put(t, open(t, path), "/a", "three"); got != 9 {
		t.Errorf("the next revision is %d, want 9", got)
	}
}

// makeKine has a key made, changed, made and deleted, made again, and leased.
func makeKine(t *testing.T, path string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file://"+path)
	if err != nil {
		t.Fatal(err)
	}
	// The table as kine 0.17 makes it.
	for _, statement := range []string{
		`CREATE TABLE kine (id INTEGER PRIMARY KEY AUTOINCREMENT, name INTEGER, created INTEGER, deleted INTEGER,
			create_revision INTEGER, prev_revision INTEGER, lease INTEGER, value BLOB, old_value BLOB)`,
		`INSERT INTO kine VALUES (1, 'compact_rev_key', 1, 0, 0, 0, 0, '', NULL), (2, '/registry/health', 1, 0, 0, 0, 0, '{"health":"true"}', NULL),
			(3, '/a', 1, 0, 0, 0, 0, 'one', NULL), (4, '/a', 0, 0, 3, 3, 0, 'two', 'one'),
			(5, '/b', 1, 0, 0, 0, 0, 'one', NULL), (7, '/c', 1, 0, 0, 0, 3600, 'one', NULL), (8, '/b', 0, 1, 5, 5, 0, 'one', 'one')`,
		`INSERT INTO kine VALUES (6, 'gap-6', 0, 1, 0, 0, 0, NULL, NULL)`,
	} {
		if _, err := db.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}
