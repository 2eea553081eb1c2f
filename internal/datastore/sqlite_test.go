package datastore

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/k3s-io/kine/pkg/server"
)

func openTemp(t *testing.T, path string) *database {
	t.Helper()
	db, err := open(t.Context(), path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.close)
	return db
}

// Every connection of the pool has to be durable, not only the first.
func TestEachConnectionIsDurable(t *testing.T) {
	db := openTemp(t, filepath.Join(t.TempDir(), "state.db"))
	var conns []*sql.Conn
	for range idleConns + 2 {
		c, err := db.sql.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	for i, c := range conns {
		for pragma, want := range map[string]string{
			"journal_mode": "wal", "synchronous": "2", "busy_timeout": "30000", "journal_size_limit": "16777216",
		} {
			var got string
			if err := c.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil || got != want {
				t.Errorf("connection %d: %s is %q (%v), want %q", i, pragma, got, err, want)
			}
		}
	}
}

func TestCheckDurableRefusesLazyCommits(t *testing.T) {
	db, err := sql.Open("sqlite", "file://"+filepath.Join(t.TempDir(), "x.db")+"?_pragma=synchronous(NORMAL)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := checkDurable(t.Context(), db, slog.New(slog.DiscardHandler)); err == nil {
		t.Fatal("synchronous=NORMAL was accepted")
	}
}

func TestFileIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "state.db")
	db := openTemp(t, path)
	if _, err := db.backend.touchHealth(t.Context()); err != nil {
		t.Fatal(err)
	}
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
	openTemp(t, path)
	if info, err := os.Stat(path); err != nil || info.Size() == 0 {
		t.Fatalf("the database is not at its path: %v, %v", info, err)
	}
}

func TestDamagedFileIsAnErrorAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	if err := os.WriteFile(path, []byte(strings.Repeat("not a database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := open(ctx, path, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), path) || ctx.Err() != nil {
		t.Fatalf("got %v", err)
	}
}

// Concurrent writers must leave the current revision at the last write.
func TestCurrentRevisionAfterConcurrentWrites(t *testing.T) {
	db := openTemp(t, filepath.Join(t.TempDir(), "state.db"))
	var wg sync.WaitGroup
	var mu sync.Mutex
	var highest int64
	for w := range 8 {
		wg.Go(func() {
			for i := range 20 {
				rev, err := db.backend.Create(t.Context(), fmt.Sprintf("/registry/x/%d-%d", w, i), []byte("v"), 0)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				highest = max(highest, rev)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if got, err := db.backend.CurrentRevision(t.Context()); err != nil || got != highest {
		t.Fatalf("current revision is %d (%v), want %d", got, err, highest)
	}
}

// A write nobody reads after must still reach a watcher, long before the poll.
func TestFirstEventNeedsNoPoll(t *testing.T) {
	db := openTemp(t, filepath.Join(t.TempDir(), "state.db"))
	w := db.backend.Watch(t.Context(), 0)
	rev, err := db.backend.Create(t.Context(), "/registry/first", []byte("v"), 0)
	if err != nil {
		t.Fatal(err)
	}
	late := time.After(5 * chaseDelay)
	for {
		select {
		case batch := <-w.Eventc:
			if batch.CurrentRev >= rev {
				return
			}
		case <-late:
			t.Fatal("no event")
		}
	}
}

func TestSelfTestReportsForeignWriter(t *testing.T) {
	db := openTemp(t, filepath.Join(t.TempDir(), "state.db"))
	db.backend.Backend = contended{db.backend.Backend}
	if err := db.selfTest(t.Context()); err == nil {
		t.Fatal("a lost update of the health key went unnoticed")
	}
}

// contended loses every update to somebody else.
type contended struct{ server.Backend }

func (contended) Update(context.Context, string, []byte, int64, int64) (int64, *server.KeyValue, bool, error) {
	return 1, nil, false, nil
}
