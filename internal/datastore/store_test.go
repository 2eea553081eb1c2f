package datastore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/clusterd/clusterd/internal/datastore"
	"github.com/clusterd/clusterd/internal/lifecycle"
	"github.com/clusterd/clusterd/internal/testkit"
)

var _ lifecycle.Component = (*datastore.Store)(nil)

// run starts a store on path; stop ends it and returns what Run returned.
func run(tb testing.TB, path string) (s *datastore.Store, stop func() error) {
	tb.Helper()
	s, err := datastore.New(datastore.Config{Path: path}, slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	tb.Cleanup(cancel)
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- s.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		tb.Fatalf("ended before ready: %v", err)
	case <-time.After(20 * time.Second):
		tb.Fatal("not ready")
	}
	return s, func() error { cancel(); return <-ended }
}

func client(tb testing.TB, s *datastore.Store) *clientv3.Client {
	tb.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"http://datastore"},
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return s.Dial(ctx)
		})},
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	return c
}

// create writes key as an API server does: only if it does not exist.
func create(ctx context.Context, c *clientv3.Client, key, value string) error {
	resp, err := c.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, value)).
		Commit()
	if err == nil && !resp.Succeeded {
		err = fmt.Errorf("%s exists already", key)
	}
	return err
}

func TestWatchSeesWritesAndRestartKeepsThem(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db", "state.db")
	s, stop := run(t, path)
	c := client(t, s)
	events := c.Watch(t.Context(), "/registry/pods/", clientv3.WithPrefix())
	if err := create(t.Context(), c, "/registry/pods/a", "one"); err != nil {
		t.Fatal(err)
	}
	select {
	case w := <-events:
		if len(w.Events) != 1 || string(w.Events[0].Kv.Value) != "one" {
			t.Fatalf("got %v", w)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("no event")
	}
	if err := stop(); err != nil {
		t.Fatalf("stopped with %v", err)
	}
	s, stop = run(t, path)
	got, err := client(t, s).Get(t.Context(), "/registry/pods/a")
	if err != nil || got.Count != 1 || string(got.Kvs[0].Value) != "one" {
		t.Fatalf("after the restart: %v, %v", got, err)
	}
	if err := stop(); err != nil {
		t.Fatalf("stopped with %v", err)
	}
}

// The API server decides by the version and by an answered progress request
// whether lists may come from its cache.
func TestProgressIsReportedOnRequest(t *testing.T) {
	s, _ := run(t, filepath.Join(t.TempDir(), "state.db"))
	c := client(t, s)
	status, err := c.Status(t.Context(), "http://datastore")
	if err != nil || status.Version != datastore.EtcdVersion {
		t.Fatalf("got %v, %v", status, err)
	}
	ctx := clientv3.WithRequireLeader(t.Context())
	events := c.Watch(ctx, "/registry/pods/", clientv3.WithPrefix(), clientv3.WithProgressNotify(), clientv3.WithCreatedNotify())
	<-events
	if err := create(t.Context(), c, "/registry/other/a", "x"); err != nil {
		t.Fatal(err)
	}
	got, err := c.Get(t.Context(), "/registry/other/a")
	if err != nil {
		t.Fatal(err)
	}
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	late := time.After(10 * time.Second)
	for {
		select {
		case w := <-events:
			if w.Header.Revision >= got.Header.Revision {
				return
			}
		case <-again.C:
			if err := c.RequestProgress(ctx); err != nil {
				t.Fatal(err)
			}
		case <-late:
			t.Fatal("the watch never got to the revision of the write")
		}
	}
}

func TestLargeValuesAndLists(t *testing.T) {
	s, _ := run(t, filepath.Join(t.TempDir(), "state.db"))
	c := client(t, s)
	value := string(make([]byte, 1<<20))
	for i := range 8 {
		if err := create(t.Context(), c, fmt.Sprintf("/registry/big/%d", i), value); err != nil {
			t.Fatal(err)
		}
	}
	got, err := c.Get(t.Context(), "/registry/big/", clientv3.WithPrefix())
	if err != nil || len(got.Kvs) != 8 || len(got.Kvs[7].Value) != len(value) {
		t.Fatalf("got %d keys, %v", len(got.Kvs), err)
	}
}

func TestStopWithOpenWatchIsQuick(t *testing.T) {
	s, stop := run(t, filepath.Join(t.TempDir(), "state.db"))
	c := client(t, s)
	<-c.Watch(t.Context(), "/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	begin := time.Now()
	if err := stop(); err != nil {
		t.Fatalf("stopped with %v", err)
	}
	if took := time.Since(begin); took > 2*time.Second {
		t.Fatalf("stopping took %s", took)
	}
	if _, err := s.Dial(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("dial after the end: %v", err)
	}
}

func TestRunReportsWhatItCannotOpen(t *testing.T) {
	s, err := datastore.New(datastore.Config{Path: "/proc/self/nowhere/state.db"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context(), func() { t.Error("ready") }); err == nil {
		t.Fatal("no error")
	}
	if _, err := datastore.New(datastore.Config{}, nil); err == nil {
		t.Fatal("an empty path was accepted")
	}
}

func BenchmarkCreate(b *testing.B) {
	s, _ := run(b, filepath.Join(b.TempDir(), "state.db"))
	c := client(b, s)
	n := 0
	for b.Loop() {
		n++
		if err := create(b.Context(), c, fmt.Sprintf("/registry/bench/%d", n), "value"); err != nil {
			b.Fatal(err)
		}
	}
}

func TestContract(t *testing.T) {
	testkit.Component(t, func(t *testing.T) lifecycle.Component {
		s, err := datastore.New(datastore.Config{Path: filepath.Join(t.TempDir(), "state.db")}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}
