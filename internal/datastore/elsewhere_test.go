package datastore_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/clusterd/clusterd/internal/datastore"
	"github.com/clusterd/clusterd/internal/datastore/endpoint"
	"github.com/clusterd/clusterd/internal/testkit/databases"
)

func TestMain(m *testing.M) {
	logrus.SetOutput(io.Discard) // what kine says
	if databases.Raced {
		delete(elsewhere, "NATS")
	}
	code := m.Run()
	databases.Clean()
	os.Exit(code)
}

// elsewhere are the databases that the tests below run on.
var elsewhere = map[string]func(testing.TB, databases.Machine, int) *databases.Server{
	"PostgreSQL": databases.Postgres,
	"MariaDB":    databases.MariaDB,
	"NATS":       databases.NATS,
}

// patience is for what takes a moment on an idle machine.
const patience = time.Minute

// lines is a log that can be read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// attach starts a store on a database and returns its client when it is ready.
func attach(t *testing.T, at string, log *lines) *kubernetes.Client {
	t.Helper()
	e, err := endpoint.Parse(at, endpoint.Files{})
	if err != nil {
		t.Fatal(err)
	}
	s := datastore.NewElsewhere(e, slog.New(slog.NewTextHandler(log, nil)))
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- s.Run(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the store ended with %v", err)
		}
	})
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("ended before ready: %v", err)
	case <-time.After(patience):
		t.Fatalf("not ready; the log: %s", log)
	}
	c, err := s.Client()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestElsewhere(t *testing.T) {
	for name, start := range elsewhere {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, databases.Here(), 0)
			t.Run("Values", func(t *testing.T) { testValues(t, attach(t, server.Endpoint, &lines{})) })
			t.Run("Leases", func(t *testing.T) { testLeases(t, attach(t, server.Endpoint, &lines{})) })
			t.Run("LeasesOfOthers", func(t *testing.T) { testLeasesOfOthers(t, server.Endpoint) })
			t.Run("Watches", func(t *testing.T) {
				testWatches(t, attach(t, server.Endpoint, &lines{}), attach(t, server.Endpoint, &lines{}))
			})
			t.Run("Loss", func(t *testing.T) { testLoss(t, server) })
			t.Run("Wait", func(t *testing.T) { testWait(t, server) })
			t.Run("Refusal", func(t *testing.T) { testRefusal(t, server) })
		})
	}
}

// testValues goes through what an API server does with a key, and with a range in pages.
func testValues(t *testing.T, c *kubernetes.Client) {
	ctx := t.Context()
	put := func(key string, revision int64, value string, want bool) int64 {
		t.Helper()
		r, err := c.Kubernetes.OptimisticPut(ctx, key, []byte(value), revision, kubernetes.PutOptions{GetOnFailure: true})
		if err != nil || r.Succeeded != want {
			t.Fatalf("put %s at %d: %v, %v", key, revision, r.Succeeded, err)
		}
		return r.Revision
	}
	first := put("/registry/v/b", 0, "1", true)
	put("/registry/v/b", 0, "2", false)
	second := put("/registry/v/b", first, "2", true)
	put("/registry/v/b", first, "3", false)
	for revision, want := range map[int64]string{first: "1", second: "2", 0: "2"} {
		r, err := c.Kubernetes.Get(ctx, "/registry/v/b", kubernetes.GetOptions{Revision: revision})
		if err != nil || r.KV == nil || string(r.KV.Value) != want || r.KV.CreateRevision != first {
			t.Errorf("at %d: %v, %v", revision, r.KV, err)
		}
	}
	for _, key := range []string{"a", "c", "d", "e"} {
		put("/registry/v/"+key, 0, key, true)
	}
	page, err := c.Kubernetes.List(ctx, "/registry/v/", kubernetes.ListOptions{Limit: 2})
	if err != nil || len(page.Kvs) != 2 || page.Count != 5 || string(page.Kvs[1].Key) != "/registry/v/b" {
		t.Fatalf("first page: %v, %v", page, err)
	}
	d, err := c.Kubernetes.OptimisticDelete(ctx, "/registry/v/d", page.Kvs[0].ModRevision, kubernetes.DeleteOptions{GetOnFailure: true})
	if err != nil || d.Succeeded || string(d.KV.Value) != "d" {
		t.Fatalf("delete at another revision: %v, %v", d, err)
	}
	if d, err = c.Kubernetes.OptimisticDelete(ctx, "/registry/v/d", d.KV.ModRevision, kubernetes.DeleteOptions{}); err != nil || !d.Succeeded {
		t.Fatalf("delete: %v, %v", d, err)
	}
	rest, err := c.Kubernetes.List(ctx, "/registry/v/", kubernetes.ListOptions{Revision: page.Revision, Continue: "/registry/v/b\x00"})
	if err != nil || len(rest.Kvs) != 3 || string(rest.Kvs[1].Key) != "/registry/v/d" {
		t.Fatalf("second page, from before the deletion: %v, %v", rest, err)
	}
	if n, err := c.Kubernetes.Count(ctx, "/registry/v/", kubernetes.CountOptions{}); err != nil || n != 4 {
		t.Errorf("count: %d, %v", n, err)
	}
	if _, err := c.Kubernetes.Get(ctx, "/registry/v/a", kubernetes.GetOptions{Revision: rest.Revision + 1000}); err == nil {
		t.Error("a revision to come can be read")
	}
	if s, err := c.Status(ctx, ""); err != nil || s.DbSize == 0 {
		t.Errorf("status: %v, %v", s, err)
	}
}

func testLeases(t *testing.T, c *kubernetes.Client) {
	watch := c.Watch(t.Context(), "/registry/l/", clientv3.WithPrefix())
	lease, err := c.Grant(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Kubernetes.OptimisticPut(t.Context(), "/registry/l/a", []byte("1"), 0, kubernetes.PutOptions{LeaseID: lease.ID}); err != nil {
		t.Fatal(err)
	}
	for want := range 2 { // made, and gone by itself
		select {
		case r := <-watch:
			for _, e := range r.Events {
				if e.Type == clientv3.EventTypeDelete {
					return
				}
			}
		case <-time.After(patience):
			t.Fatalf("event %d has not come", want)
		}
	}
	t.Error("it was not removed")
}

// testLeasesOfOthers wants keys to go whose writer has ended before, for one that was there meanwhile and for one that has come
// since.
func testLeasesOfOthers(t *testing.T, at string) {
	t.Run("There", func(t *testing.T) {
		c := attach(t, at, &lines{})
		lend(t, at)
		returned(t, c)
	})
	t.Run("Come", func(t *testing.T) {
		lend(t, at)
		returned(t, attach(t, at, &lines{}))
	})
}

// lend writes keys with a lease and ends before that does.
func lend(t *testing.T, at string) {
	t.Helper()
	t.Run("Writer", func(t *testing.T) {
		c := attach(t, at, &lines{})
		lease, err := c.Grant(t.Context(), 3)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"/registry/o/a", "/registry/o/b"} {
			if _, err := c.Kubernetes.OptimisticPut(t.Context(), key, []byte("1"), 0, kubernetes.PutOptions{LeaseID: lease.ID}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// returned waits until those keys are gone, which have to be there at first.
func returned(t *testing.T, c *kubernetes.Client) {
	t.Helper()
	there := int64(0)
	await(t, func() string {
		n, err := c.Kubernetes.Count(t.Context(), "/registry/o/", kubernetes.CountOptions{})
		if there = max(there, n); err != nil || n > 0 || there == 0 {
			return fmt.Sprintf("%d keys of %d, %v", n, there, err)
		}
		return ""
	})
}

// state is a range as a reader that lists once and then watches has it.
type state struct {
	mu     sync.Mutex
	values map[string]string
	at     int64
	fault  string
}

func (s *state) follow(ctx context.Context, c *kubernetes.Client, prefix string) error {
	list, err := c.Kubernetes.List(ctx, prefix, kubernetes.ListOptions{})
	if err != nil {
		return err
	}
	s.values, s.at = map[string]string{}, list.Revision
	for _, kv := range list.Kvs {
		s.values[string(kv.Key)] = string(kv.Value)
	}
	events := c.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithProgressNotify(), clientv3.WithRev(list.Revision+1))
	go func() {
		for r := range events {
			s.apply(r)
		}
	}()
	return nil
}

func (s *state) apply(r clientv3.WatchResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := r.Err(); err != nil {
		s.fault = err.Error()
	}
	for _, e := range r.Events {
		if e.Kv.ModRevision <= s.at {
			s.fault = fmt.Sprintf("revision %d after %d", e.Kv.ModRevision, s.at)
		}
		s.at = e.Kv.ModRevision
		if e.Type == clientv3.EventTypeDelete {
			delete(s.values, string(e.Kv.Key))
		} else {
			s.values[string(e.Kv.Key)] = string(e.Kv.Value)
		}
	}
	s.at = max(s.at, r.Header.Revision)
}

// testWatches has two servers write to one database, and readers that begin in the middle of that. All must come to what
// is there in the end: nothing may be missing between a list and the watch after it.
func testWatches(t *testing.T, one, other *kubernetes.Client) {
	const prefix = "/registry/w/"
	var writers sync.WaitGroup
	for n := range 6 {
		c := []*kubernetes.Client{one, other}[n%2]
		random := rand.New(rand.NewPCG(1, uint64(n)))
		writers.Go(func() {
			for i := range 60 {
				rewrite(t, c, fmt.Sprintf("%s%d", prefix, random.IntN(12)), fmt.Sprintf("%d-%d", n, i), random.IntN(4) == 0)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var readers []*state
	for n := range 24 {
		s := &state{}
		if err := s.follow(ctx, []*kubernetes.Client{one, other}[n%2], prefix); err != nil {
			t.Error(err)
			continue
		}
		readers = append(readers, s)
	}
	writers.Wait()
	last, err := one.Kubernetes.List(ctx, prefix, kubernetes.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, kv := range last.Kvs {
		want[string(kv.Key)] = string(kv.Value)
	}
	for n, s := range readers {
		await(t, func() string {
			_ = []*kubernetes.Client{one, other}[n%2].RequestProgress(ctx)
			s.mu.Lock()
			defer s.mu.Unlock()
			switch {
			case s.fault != "":
				return s.fault
			case s.at < last.Revision:
				return fmt.Sprintf("reader %d is at %d of %d", n, s.at, last.Revision)
			case !maps.Equal(s.values, want):
				return fmt.Sprintf("reader %d has %v, not %v", n, s.values, want)
			}
			return ""
		})
	}
}

// rewrite changes or removes a key, whatever it is.
func rewrite(t *testing.T, c *kubernetes.Client, key, value string, remove bool) {
	now, err := c.Kubernetes.Get(t.Context(), key, kubernetes.GetOptions{})
	if err != nil {
		t.Errorf("get: %v", err)
		return
	}
	revision := int64(0)
	if now.KV != nil {
		revision = now.KV.ModRevision
	}
	if remove && revision != 0 {
		_, err = c.Kubernetes.OptimisticDelete(t.Context(), key, revision, kubernetes.DeleteOptions{})
	} else {
		_, err = c.Kubernetes.OptimisticPut(t.Context(), key, []byte(value), revision, kubernetes.PutOptions{})
	}
	if err != nil {
		t.Errorf("write: %v", err)
	}
}

// await polls until done has nothing to say.
func await(t *testing.T, done func() string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		missing := done()
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(missing)
		}
	}
}
