package migrate_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/clusterd/clusterd/internal/datastore"
	"github.com/clusterd/clusterd/internal/datastore/endpoint"
	"github.com/clusterd/clusterd/internal/datastore/migrate"
	"github.com/clusterd/clusterd/internal/testkit/databases"
)

func TestMain(m *testing.M) {
	logrus.SetOutput(io.Discard)
	code := m.Run()
	databases.Clean()
	os.Exit(code)
}

func parse(t *testing.T, text string) endpoint.Endpoint {
	t.Helper()
	e, err := endpoint.Parse(text, endpoint.Files{})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// open serves a datastore until the test calls the function, or ends.
func open(t *testing.T, e endpoint.Endpoint) (*kubernetes.Client, func()) {
	t.Helper()
	type store interface {
		Run(context.Context, func()) error
		Client() (*kubernetes.Client, error)
	}
	var s store = datastore.NewElsewhere(e, slog.New(slog.DiscardHandler))
	if e.Kind == endpoint.SQLite {
		var err error
		if s, err = datastore.New(datastore.Config{Path: e.Path}, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
	}
	if e.Kind == endpoint.Etcd {
		c, err := kubernetes.New(clientv3.Config{Endpoints: e.Servers})
		if err != nil {
			t.Fatal(err)
		}
		return c, func() { c.Close() }
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- s.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		cancel()
		t.Fatalf("ended before ready: %v", err)
	case <-time.After(time.Minute):
		cancel()
		t.Fatal("not ready")
	}
	c, err := s.Client()
	if err != nil {
		t.Fatal(err)
	}
	return c, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// fill writes what a cluster might, and gives the last revision.
func fill(t *testing.T, c *kubernetes.Client, n int) (last int64) {
	t.Helper()
	put := func(key, value string, at int64, lease clientv3.LeaseID) int64 {
		r, err := c.Kubernetes.OptimisticPut(t.Context(), key, []byte(value), at, kubernetes.PutOptions{LeaseID: lease})
		if err != nil || !r.Succeeded {
			t.Fatalf("put %s: %v, %v", key, r, err)
		}
		return r.Revision
	}
	for i := range n {
		at := put(fmt.Sprintf("/registry/configmaps/default/c%d", i), strings.Repeat(fmt.Sprint(i, "\x00\xff"), i%50), 0, 0)
		if i%3 == 0 {
			at = put(fmt.Sprintf("/registry/configmaps/default/c%d", i), "second", at, 0)
		}
		last = at
	}
	gone := put("/registry/pods/default/gone", "1", 0, 0)
	if r, err := c.Kubernetes.OptimisticDelete(t.Context(), "/registry/pods/default/gone", gone, kubernetes.DeleteOptions{}); err != nil || !r.Succeeded {
		t.Fatal(r, err)
	}
	lease, err := c.Grant(t.Context(), 3600)
	if err != nil {
		t.Fatal(err)
	}
	return put("/registry/events/default/e", "k8s:enc:aescbc:v1:", 0, lease.ID)
}

// content is a datastore's keys with what they hold, and the revisions if they were kept.
func content(t *testing.T, e endpoint.Endpoint, revisions bool) map[string]string {
	t.Helper()
	c, end := open(t, e)
	defer end()
	list, err := c.Kubernetes.List(t.Context(), "/registry/", kubernetes.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, kv := range list.Kvs {
		text := string(kv.Value)
		if kv.Lease != 0 {
			text += " with a lease"
		}
		if revisions {
			text += fmt.Sprint(" ", kv.ModRevision, " ", kv.CreateRevision)
		}
		if string(kv.Key) != "/registry/health" {
			all[string(kv.Key)] = text
		}
	}
	return all
}

func copied(t *testing.T, from, to endpoint.Endpoint) migrate.Report {
	t.Helper()
	var seen int64
	r, err := migrate.Run(t.Context(), migrate.Config{From: from, To: to, Log: slog.New(slog.DiscardHandler), Progress: func(done, all int64) {
		if done < seen || done > all {
			t.Errorf("progress %d of %d after %d", done, all, seen)
		}
		seen = done
	}})
	if err != nil {
		t.Fatalf("%s to %s: %v", from, to, err)
	}
	if seen == 0 {
		t.Error("no progress is told")
	}
	return r
}

const keys = 700

// TestRound takes a cluster through all kinds of datastore, and back to the first.
func TestRound(t *testing.T) {
	dir := t.TempDir()
	first := parse(t, "sqlite://"+filepath.Join(dir, "first.db"))
	c, end := open(t, first)
	last := fill(t, c, keys)
	end()
	want := content(t, first, true)
	if len(want) != keys+1 {
		t.Fatalf("%d keys in the beginning", len(want))
	}
	stations := []endpoint.Endpoint{
		parse(t, databases.Postgres(t, databases.Here(), 0).Endpoint),
		parse(t, databases.MariaDB(t, databases.Here(), 0).Endpoint),
		parse(t, "sqlite://"+filepath.Join(dir, "second.db")),
		parse(t, databases.Etcd(t, databases.Here(), 0).Endpoint),
		parse(t, databases.NATS(t, databases.Here(), 0).Endpoint),
		parse(t, "sqlite://"+filepath.Join(dir, "last.db")),
	}
	from, revisions := first, true
	for _, to := range stations {
		if to.Kind == endpoint.NATS && databases.Raced {
			continue
		}
		r := copied(t, from, to)
		if revisions = revisions && to.Kind != endpoint.Etcd && to.Kind != endpoint.NATS; !revisions {
			want = content(t, first, false)
		}
		if r.Keys != keys+1 || r.Encrypted != 1 || r.Kept != (to.Kind != endpoint.Etcd && to.Kind != endpoint.NATS) || revisions && r.Revision <= last {
			t.Errorf("%s: %+v, after revision %d", to, r, last)
		}
		if got := content(t, to, revisions); !maps.Equal(got, want) {
			t.Fatalf("%s holds something else, of %d keys", to, len(got))
		}
		useable(t, to, r.Revision)
		if _, err := migrate.Run(t.Context(), migrate.Config{From: first, To: to, Log: slog.New(slog.DiscardHandler)}); !errors.Is(err, migrate.ErrNotEmpty) {
			t.Errorf("%s is written over: %v", to, err)
		}
		from = to
	}
}

// useable writes, watches and removes, as a server does after a migration. Revisions go on, and old watches do not.
func useable(t *testing.T, e endpoint.Endpoint, last int64) {
	t.Helper()
	c, end := open(t, e)
	defer end()
	from := last + 1
	if e.Kind == endpoint.NATS {
		from = 0 // its past ends with the server that saw it
	}
	events := c.Watch(t.Context(), "/registry/new/", clientv3.WithPrefix(), clientv3.WithRev(from))
	r, err := c.Kubernetes.OptimisticPut(t.Context(), "/registry/new/a", []byte("1"), 0, kubernetes.PutOptions{})
	if err != nil || !r.Succeeded || r.Revision <= last {
		t.Fatalf("%s: %v, %v after revision %d", e, r, err, last)
	}
	select {
	case w := <-events:
		if len(w.Events) != 1 || w.Events[0].Kv.ModRevision != r.Revision {
			t.Errorf("%s: event %v", e, w)
		}
	case <-time.After(time.Minute):
		t.Errorf("%s: no event", e)
	}
	if d, err := c.Kubernetes.OptimisticDelete(t.Context(), "/registry/new/a", r.Revision, kubernetes.DeleteOptions{}); err != nil || !d.Succeeded {
		t.Errorf("%s: %v, %v", e, d, err)
	}
	if e.Kind == endpoint.Etcd || e.Kind == endpoint.NATS {
		return
	}
	select {
	case w := <-c.Watch(t.Context(), "/registry/new/", clientv3.WithPrefix(), clientv3.WithRev(last-1)):
		if w.CompactRevision == 0 {
			t.Errorf("%s: a watch from before goes on: %v", e, w)
		}
	case <-time.After(time.Minute):
		t.Errorf("%s: a watch from before waits", e)
	}
}

// stock makes a file as kine 0.17 and k3s do, by SQL alone.
func stock(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file://"+path)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	for _, statement := range []string{
		"PRAGMA journal_mode = WAL",
		`CREATE TABLE kine (id INTEGER PRIMARY KEY AUTOINCREMENT, name INTEGER, created INTEGER, deleted INTEGER,
			create_revision INTEGER, prev_revision INTEGER, lease INTEGER, value BLOB, old_value BLOB)`,
		`INSERT INTO kine VALUES
			(1, 'compact_rev_key', 1, 0, 0, 2, 0, x'', NULL),
			(2, '/registry/health', 1, 0, 0, 0, 0, '{"health":"true"}', NULL),
			(3, '/registry/configmaps/default/a', 1, 0, 0, 0, 0, 'a1', NULL),
			(4, '/registry/configmaps/default/a', 0, 0, 3, 3, 0, 'a2', 'a1'),
			(5, 'gap-5', 0, 1, 0, 0, 0, NULL, NULL),
			(6, '/registry/configmaps/default/b', 1, 0, 0, 0, 0, 'b1', NULL),
			(7, '/registry/configmaps/default/b', 0, 1, 6, 6, 0, 'b1', 'b1'),
			(8, '/registry/events/default/e', 1, 0, 0, 0, 3600, 'e1', NULL),
			(9, '/bootstrap/0123456789ab', 1, 0, 0, 0, 0, 'secret', NULL)`,
	} {
		if _, err := db.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	return db
}

// TestStockFile takes over what k3s leaves, once it is stopped.
func TestStockFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "k3s.db")
	db := stock(t, path)
	from, to := parse(t, "sqlite://"+path), parse(t, "sqlite://"+filepath.Join(dir, "ours.db"))
	c := migrate.Config{From: from, To: to, Log: slog.New(slog.DiscardHandler)}
	if _, err := migrate.Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), "stop it first") {
		t.Errorf("with k3s running: %v", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := migrate.Run(t.Context(), c)
	if err != nil || r.Keys != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	want := map[string]string{"/registry/configmaps/default/a": "a2 4 3", "/registry/events/default/e": "e1 with a lease 8 8"}
	if got := content(t, to, true); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	useable(t, to, r.Revision)
	again, err := sql.Open("sqlite", "file://"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	var rows int
	if err := again.QueryRow("SELECT COUNT(*) FROM kine").Scan(&rows); err != nil || rows != 9 {
		t.Errorf("the source has %d rows afterwards, %v", rows, err)
	}
}

// TestInterrupted ends a copy in the middle, for each kind of target, and runs it again.
func TestInterrupted(t *testing.T) {
	dir := t.TempDir()
	from := parse(t, "sqlite://"+filepath.Join(dir, "from.db"))
	c, end := open(t, from)
	fill(t, c, keys)
	end()
	want := content(t, from, false)
	for name, to := range map[string]endpoint.Endpoint{
		"SQLite":     parse(t, "sqlite://"+filepath.Join(dir, "to.db")),
		"PostgreSQL": parse(t, databases.Postgres(t, databases.Here(), 0).Endpoint),
		"etcd":       parse(t, databases.Etcd(t, databases.Here(), 0).Endpoint),
		"NATS":       parse(t, databases.NATS(t, databases.Here(), 0).Endpoint),
	} {
		t.Run(name, func(t *testing.T) {
			if to.Kind == endpoint.NATS && databases.Raced {
				t.Skip("the driver has races of its own")
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			_, err := migrate.Run(ctx, migrate.Config{From: from, To: to, Log: slog.New(slog.DiscardHandler), Progress: func(done, _ int64) {
				if done > keys/2 {
					cancel()
				}
			}})
			if err == nil {
				t.Fatal("it was not interrupted")
			}
			if to.Kind == endpoint.Etcd || to.Kind == endpoint.NATS {
				other := parse(t, "sqlite://"+filepath.Join(dir, "other-"+name+".db"))
				c, end := open(t, other)
				fill(t, c, 3)
				end()
				if _, err := migrate.Run(t.Context(), migrate.Config{From: other, To: to, Log: slog.New(slog.DiscardHandler)}); !errors.Is(err, migrate.ErrNotEmpty) {
					t.Errorf("another source's interrupted copy is written over: %v", err)
				}
			}
			if r := copied(t, from, to); r.Keys != keys+1 {
				t.Errorf("%+v", r)
			}
			if got := content(t, to, false); !maps.Equal(got, want) {
				t.Errorf("it holds something else, of %d keys", len(got))
			}
		})
	}
}
