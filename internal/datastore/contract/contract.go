// Package contract holds a store to what API servers need of etcd, through an etcd client and nothing else. The same suite
// runs against every store that clusterd can use: its own engine, with and without gRPC, and the ones it is pointed at.
//
// Run is the whole of it: single cases with what must come of them, and random operations by several clients at a time, all of
// which is compared with a model in memory that is too simple to be wrong.
//
// Requests have the shapes that API servers send and no others, since some stores refuse the rest.
package contract

import (
	"context"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// Store is what the suite is told about a store.
type Store struct {
	// Client connects to the store, required. It may be called more than once; all clients must reach the same store, which
	// need not be empty.
	Client func(t *testing.T) *kubernetes.Client
	// Operations is how many random operations are made, 100000 when 0.
	Operations int
	// Seed makes the random operations others.
	Seed uint64
	// Kine is for stores behind the drivers of kine: they may leave out revisions, compact when they like and not when they are
	// told, do not count versions, take it for done to delete what is not there, and refuse watches from revisions to come,
	// and writes that others are in the way of, whatever their keys. API servers live with that.
	Kine bool
}

// patience is far more than any store takes for anything.
const patience = time.Minute

// root is above all keys that the suite writes.
const root = "/registry/contract/"

// Run holds s to the contract.
func Run(t *testing.T, s Store) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, *client)
	}{
		{"Guards", testGuards},
		{"Versions", testVersions},
		{"Snapshots", testSnapshots},
		{"Pages", testPages},
		{"Prefixes", testPrefixes},
		{"FutureRevision", testFutureRevision},
		{"Compaction", testCompaction},
		{"AwkwardKeysAndValues", testAwkward},
		{"WatchReplays", testWatchReplays},
		{"WatchOneKey", testWatchOneKey},
		{"WatchFromTheFuture", testWatchFromTheFuture},
		{"WatchOfWhatIsCompacted", testWatchOfWhatIsCompacted},
		{"WatchEnds", testWatchEnds},
		{"Progress", testProgress},
		{"Leases", testLeases},
		{"Status", testStatus},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, connect(t, s, c.name)) })
	}
	t.Run("Random", func(t *testing.T) { testRandom(t, s) })
}

// client makes requests below a prefix of its own.
type client struct {
	*kubernetes.Client
	store  Store
	prefix string
}

// connect returns a client whose prefix is empty, for some stores keep what earlier runs left.
func connect(t *testing.T, s Store, name string) *client {
	t.Helper()
	unique := time.Now().UTC().Format("150405.000000")
	return &client{Client: s.Client(t), store: s, prefix: root + strings.ToLower(name) + "-" + unique + "/"}
}

// context ends with the test, or when the store has hung for much too long.
func (c *client) context(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// put writes a key that is at revision and returns the new one.
func (c *client) put(t *testing.T, key, value string, revision int64) int64 {
	t.Helper()
	r, err := c.tryPut(t, key, value, revision)
	if err != nil || !r.Succeeded {
		t.Fatalf("write %s, which is at %d: %v, %v", key, revision, r, err)
	}
	return r.Revision
}

// tryPut asks for a write of a key if it is at revision, 0 for one that is not there, and for what it is if it is not.
func (c *client) tryPut(t *testing.T, key, value string, revision int64) (kubernetes.PutResponse, error) {
	return c.Kubernetes.OptimisticPut(c.context(t), c.prefix+key, []byte(value), revision, kubernetes.PutOptions{GetOnFailure: true})
}

// remove deletes a key that is at revision and returns the revision of that.
func (c *client) remove(t *testing.T, key string, revision int64) int64 {
	t.Helper()
	r, err := c.tryRemove(t, key, revision)
	if err != nil || !r.Succeeded {
		t.Fatalf("delete %s, which is at %d: %v, %v", key, revision, r, err)
	}
	return r.Revision
}

func (c *client) tryRemove(t *testing.T, key string, revision int64) (kubernetes.DeleteResponse, error) {
	return c.Kubernetes.OptimisticDelete(c.context(t), c.prefix+key, revision, kubernetes.DeleteOptions{GetOnFailure: true})
}

// get reads below the prefix.
func (c *client) get(t *testing.T, key string, opts ...clientv3.OpOption) *clientv3.GetResponse {
	t.Helper()
	r, err := c.KV.Get(c.context(t), c.prefix+key, opts...)
	if err != nil {
		t.Fatalf("get %s: %v", key, err)
	}
	return r
}

// compact gives up what is below revision, or skips the test where clients cannot.
func (c *client) compact(t *testing.T, revision int64) {
	t.Helper()
	if c.store.Kine {
		t.Skip("clients cannot compact this store")
	}
	if _, err := c.Compact(c.context(t), revision); err != nil {
		t.Fatalf("compact %d: %v", revision, err)
	}
}
