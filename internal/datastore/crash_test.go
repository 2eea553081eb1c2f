package datastore_test

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/clusterd/clusterd/internal/datastore"
)

// crashRounds is set by scripts/crashtest; by default the rounds take some seconds.
var crashRounds = flag.Int("crash.rounds", 12, "rounds of each crash test")

// crashPrefix is before all keys of the crash tests.
const crashPrefix = "/registry/crash/"

// change is a write that was asked for. The value says what it is, for no two are the same.
type change struct {
	key, value string // a value of "" is a deletion
	revision   int64  // 0 as long as it is not acknowledged
}

func (c change) String() string {
	if c.value == "" {
		return fmt.Sprintf("deletion of %s at %d", c.key, c.revision)
	}
	return fmt.Sprintf("write of %s at %d with %.30s", c.key, c.revision, c.value)
}

// ledger is what the store must have: every change that it made, by revision. Deletions stay.
type ledger struct {
	changes map[int64]change
	last    int64
}

func newLedger() *ledger { return &ledger{changes: map[int64]change{}} }

func (l *ledger) add(t *testing.T, c change) {
	t.Helper()
	if other, taken := l.changes[c.revision]; taken {
		t.Fatalf("one revision for two: %s, %s", c, other)
	}
	l.changes[c.revision] = c
	l.last = max(l.last, c.revision)
}

// state is the latest change of each key, up to a revision.
func (l *ledger) state(revision int64) map[string]change {
	now := map[string]change{}
	for _, c := range l.changes {
		if c.revision <= revision && c.revision > now[c.key].revision {
			now[c.key] = c
		}
	}
	for key, c := range now {
		if c.value == "" {
			delete(now, key)
		}
	}
	return now
}

// found is what a store has after a crash.
type found struct {
	revision int64 // the last one before the start
	kvs      map[string]change
	events   []change // after the revision that was asked for
	end      int64    // the last revision when it was ended again
}

// look starts a store that has crashed, reads all that it has and the events after a revision unless that is 0, and ends it.
// A store writes one revision itself when it starts.
func look(t *testing.T, path string, after int64) found {
	t.Helper()
	s, stop := run(t, path)
	c := directClient(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	list, err := c.Kubernetes.List(ctx, crashPrefix, kubernetes.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f := found{revision: list.Revision - 1, kvs: map[string]change{}}
	for _, kv := range list.Kvs {
		f.kvs[string(kv.Key)] = change{string(kv.Key), string(kv.Value), kv.ModRevision}
	}
	if after > 0 {
		f.events = replay(ctx, t, c, after, list.Revision)
	}
	f.end = goOn(ctx, t, c, list.Revision)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkIntegrity(t, path)
	return f
}

// goOn wants the next write to get the next revision.
func goOn(ctx context.Context, t *testing.T, c *kubernetes.Client, revision int64) int64 {
	t.Helper()
	const key = "/registry/after-crash"
	is, err := c.Kubernetes.Get(ctx, key, kubernetes.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	guard := int64(0)
	if is.KV != nil {
		guard = is.KV.ModRevision
	}
	put, err := c.Kubernetes.OptimisticPut(ctx, key, []byte("x"), guard, kubernetes.PutOptions{})
	if err != nil || !put.Succeeded || put.Revision != revision+1 {
		t.Fatalf("a write after revision %d: %v, %v", revision, put, err)
	}
	return put.Revision
}

// replay reads the events after a revision up to another one, which is of the health key.
func replay(ctx context.Context, t *testing.T, c *kubernetes.Client, after, until int64) (all []change) {
	t.Helper()
	for r := range c.Watch(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithRev(after+1)) {
		if err := r.Err(); err != nil {
			t.Fatalf("the events after %d: %v", after, err)
		}
		for _, e := range r.Events {
			if key := string(e.Kv.Key); strings.HasPrefix(key, crashPrefix) {
				all = append(all, change{key, string(e.Kv.Value), e.Kv.ModRevision})
			}
			if e.Kv.ModRevision == until {
				return all
			}
		}
	}
	t.Fatalf("the events after %d end before %d", after, until)
	return nil
}

// compare wants a store to have exactly what the ledger has up to a revision.
func (l *ledger) compare(t *testing.T, f found, revision int64) {
	t.Helper()
	want := l.state(revision)
	for key, c := range want {
		if f.kvs[key] != c {
			t.Errorf("lost: %s; there is %s", c, f.kvs[key])
		}
	}
	for key, c := range f.kvs {
		if _, known := want[key]; !known {
			t.Errorf("nobody asked for the %s", c)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

func directClient(t *testing.T, s *datastore.Store) *kubernetes.Client {
	t.Helper()
	c, err := s.Client()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func checkIntegrity(t *testing.T, path string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var result string
	if err := db.QueryRow("PRAGMA integrity_check").Scan(&result); err != nil || result != "ok" {
		t.Fatalf("integrity: %s, %v", result, err)
	}
}
