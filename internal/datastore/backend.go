package datastore

import (
	"context"
	"net"
	"sync"

	"github.com/k3s-io/kine/pkg/server"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/clusterd/clusterd/internal/datastore/engine"
	"github.com/clusterd/clusterd/internal/datastore/external"
)

// backend is what clients need of an open store: kine's terms, and watches of ranges.
type backend interface {
	Get(ctx context.Context, key string, revision int64, keysOnly bool) (int64, *server.KeyValue, error)
	List(ctx context.Context, key, end string, limit, revision int64, keysOnly bool) (int64, []*server.KeyValue, error)
	Count(ctx context.Context, key, end string, revision int64) (int64, int64, error)
	Create(ctx context.Context, key string, value []byte, lease int64) (int64, error)
	Update(ctx context.Context, key string, value []byte, revision, lease int64) (int64, *server.KeyValue, bool, error)
	Delete(ctx context.Context, key string, revision int64) (int64, *server.KeyValue, bool, error)
	Compact(ctx context.Context, revision int64) (int64, error)
	DbSize(ctx context.Context) (int64, error)

	// subscribe starts a watch of a range from a revision on, or from the next one when that is 0.
	subscribe(key, end string, start int64) (subscription, error)
	// revisions are the last one and the one below which nothing is kept, as far as they are known.
	revisions() engine.Revisions
	// sync calls then when the watches have come to the last revision, also if it is of no key.
	sync(then func())
}

// subscription gives the events of a range, each once and in order.
type subscription interface {
	Ready() <-chan struct{}
	Next() (events []*server.Event, revision int64, err error)
	Close()
}

// local is the engine as a backend.
type local struct{ *engine.Engine }

func (l local) subscribe(key, end string, start int64) (subscription, error) {
	w, err := l.Subscribe(key, end, start, true)
	if err != nil {
		return nil, err // a nil *engine.Watch would be no nil subscription
	}
	return w, nil
}

func (l local) revisions() engine.Revisions { return l.Revisions() }

func (local) sync(then func()) { then() }

// remote is a database elsewhere as a backend.
type remote struct{ *external.Backend }

func (r remote) subscribe(key, end string, start int64) (subscription, error) {
	w, err := r.Subscribe(key, end, start)
	if err != nil {
		return nil, err
	}
	return w, nil
}

func (r remote) revisions() engine.Revisions { return engine.Revisions{Current: r.Current()} }

func (r remote) sync(then func()) {
	go func() {
		r.Sync()
		then()
	}()
}

// clients makes the clients of a store while it is open.
type clients struct {
	watches *watches

	mu sync.Mutex
	db backend
}

// open notes what clients use; nil when the store is closed.
func (c *clients) open(db backend) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.db = db
}

func (c *clients) opened() (backend, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.db == nil {
		return nil, net.ErrClosed
	}
	return c.db, nil
}

// Client returns an etcd client whose calls are calls of the store: there is no connection, no serialising and no goroutine
// but one for each watch. It knows what API servers ask for and refuses the rest. Closing it does nothing. It may be called
// once the store is ready; the error is net.ErrClosed after its end.
func (c *clients) Client() (*kubernetes.Client, error) {
	db, err := c.opened()
	if err != nil {
		return nil, err
	}
	client := clientv3.NewCtxClient(context.Background())
	kv := &directKV{db}
	client.KV, client.Watcher, client.Lease, client.Maintenance = kv, c.watches.client(db), directLease{}, directMaintenance{db: db}
	return &kubernetes.Client{Client: client, Kubernetes: &directObjects{kv}}, nil
}
