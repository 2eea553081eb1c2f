package datastore_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/clusterd/clusterd/internal/datastore"
	"github.com/clusterd/clusterd/internal/datastore/endpoint"
	"github.com/clusterd/clusterd/internal/datastore/external"
	"github.com/clusterd/clusterd/internal/testkit/databases"
)

// TestElsewherePast compacts a database, and then takes revisions away that a server has seen.
func TestElsewherePast(t *testing.T) {
	for name, start := range elsewhere {
		if name == "NATS" {
			continue // it keeps versions by their number for each key, and has no table to take rows from
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, databases.Here(), 0)
			t.Run("Compaction", func(t *testing.T) { testCompaction(t, attach(t, server.Endpoint, &lines{})) })
			t.Run("LostRevisions", func(t *testing.T) { testLostRevisions(t, server) })
		})
	}
}

// testCompaction gives up all but the revisions that are always kept: what is older can neither be read nor watched.
func testCompaction(t *testing.T, c *kubernetes.Client) {
	first, err := c.Kubernetes.OptimisticPut(t.Context(), "/registry/k/0", []byte("1"), 0, kubernetes.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const kept = 1000
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			revision := int64(0)
			for range (kept + 200) / 8 {
				r, err := c.Kubernetes.OptimisticPut(t.Context(), fmt.Sprintf("/registry/k/w%d", w), []byte("x"), revision, kubernetes.PutOptions{})
				if err != nil || !r.Succeeded {
					t.Errorf("write: %v, %v", r, err)
					return
				}
				revision = r.Revision
			}
		})
	}
	writers.Wait()
	last, err := c.Kubernetes.List(t.Context(), "/registry/k/", kubernetes.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Compact(t.Context(), last.Revision); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Kubernetes.List(t.Context(), "/registry/k/", kubernetes.ListOptions{Revision: first.Revision}); err == nil || !strings.Contains(err.Error(), "compacted") {
		t.Errorf("a list of what is compacted: %v", err)
	}
	select {
	case r := <-c.Watch(t.Context(), "/registry/k/", clientv3.WithPrefix(), clientv3.WithRev(first.Revision)):
		if r.CompactRevision == 0 {
			t.Errorf("a watch of what is compacted gives %v", r)
		}
	case <-time.After(patience):
		t.Error("a watch of what is compacted waits")
	}
	for revision, want := range map[int64]int{0: 9, last.Revision: 9, last.Revision - kept/2: 9} {
		l, err := c.Kubernetes.List(t.Context(), "/registry/k/", kubernetes.ListOptions{Revision: revision})
		if err != nil || len(l.Kvs) != want {
			t.Errorf("at %d: %d keys, %v", revision, len(l.Kvs), err)
		}
	}
}

// testLostRevisions has a database that another one took the place of, without the last writes. What the server remembers
// of them is worth nothing: it has to begin again.
func testLostRevisions(t *testing.T, server *databases.Server) {
	e, err := endpoint.Parse(server.Endpoint, endpoint.Files{})
	if err != nil {
		t.Fatal(err)
	}
	s := datastore.NewElsewhere(e, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- s.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case <-time.After(patience):
		t.Fatal("not ready")
	}
	c, err := s.Client()
	if err != nil {
		t.Fatal(err)
	}
	var last int64
	for n := range 10 {
		r, err := c.Kubernetes.OptimisticPut(t.Context(), fmt.Sprintf("/registry/lost/%d", n), []byte("x"), 0, kubernetes.PutOptions{})
		if err != nil {
			t.Fatal(err)
		}
		last = r.Revision
	}
	if l, err := c.Kubernetes.List(t.Context(), "/registry/lost/", kubernetes.ListOptions{}); err != nil || l.Revision < last {
		t.Fatal(l, err)
	}
	db, err := external.SQL(e)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(fmt.Sprintf("DELETE FROM kine WHERE id > %d", last-5)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Kubernetes.List(t.Context(), "/registry/lost/", kubernetes.ListOptions{}); err == nil {
		t.Error("a list goes on as if nothing had happened")
	}
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), fmt.Sprint(last)) || strings.Contains(err.Error(), databases.Password) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(patience):
		t.Error("the store goes on")
	}
}
