package datastore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// watches are the ones open in all clients of a store that want to hear of progress.
type watches struct {
	mu   sync.Mutex
	open map[*watch]struct{}
}

// watch is one of a client's. asked holds a token when progress is to be reported.
type watch struct {
	client *directWatcher
	events subscription
	to     chan clientv3.WatchResponse
	asked  chan struct{}
}

// directWatcher is the watches of one client.
type directWatcher struct {
	all *watches
	db  backend
}

var _ clientv3.Watcher = (*directWatcher)(nil)

func newWatches() *watches { return &watches{open: map[*watch]struct{}{}} }

func (w *watches) client(db backend) *directWatcher { return &directWatcher{all: w, db: db} }

// ask makes the watches of one client, or of all when it is nil, report how far they have come.
func (w *watches) ask(of *directWatcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for one := range w.open {
		if of != nil && one.client != of {
			continue
		}
		select {
		case one.asked <- struct{}{}:
		default:
		}
	}
}

// report has all watches report at an interval, until ctx ends.
func (w *watches) report(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			w.ask(nil)
		case <-ctx.Done():
			return
		}
	}
}

func (w *watches) add(one *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[one] = struct{}{}
}

func (w *watches) remove(one *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.open, one)
}

// RequestProgress makes each watch of the client that wants it report the revision up to which it has given all events.
func (d *directWatcher) RequestProgress(context.Context) error {
	d.db.sync(func() { d.all.ask(d) })
	return nil
}

// Close does nothing: a watch ends with its context.
func (d *directWatcher) Close() error { return nil }

// Watch gives the events of a key or range, with what they replaced.
func (d *directWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	op := clientv3.OpGet(key, opts...)
	w := &watch{client: d, to: make(chan clientv3.WatchResponse, 1), asked: make(chan struct{}, 1)}
	var err error
	if op.IsFilterPut() || op.IsFilterDelete() || op.IsFragment() {
		err = fmt.Errorf("watch with a filter or in fragments: %w", errUnsupported)
	} else {
		w.events, err = d.db.subscribe(string(op.KeyBytes()), rangeEnd(op), op.Rev())
	}
	if err != nil {
		w.to <- d.failure(err)
		close(w.to)
		return w.to
	}
	if op.IsCreatedNotify() {
		w.to <- clientv3.WatchResponse{Header: header(0), Created: true}
	}
	// Others would pass progress on to clients that have not asked for it.
	if op.IsProgressNotify() {
		d.all.add(w)
	}
	go w.run(ctx)
	return w.to
}

// failure is the last response of a watch.
func (d *directWatcher) failure(err error) clientv3.WatchResponse {
	stats := d.db.revisions()
	response := clientv3.WatchResponse{Header: header(stats.Current), Canceled: true, CancelReason: err.Error()}
	if err == server.ErrCompacted {
		response.CompactRevision = max(stats.Compacted, 1)
	}
	return response
}

// run hands on events until ctx or the store ends.
func (w *watch) run(ctx context.Context) {
	defer close(w.to)
	defer w.events.Close()
	defer w.client.all.remove(w)
	for {
		asked := false
		select {
		case <-w.events.Ready():
		case <-w.asked:
			asked = true
		case <-ctx.Done():
			return
		}
		events, revision, err := w.events.Next()
		if err != nil {
			w.send(ctx, w.client.failure(err))
			return
		}
		if len(events) > 0 && !w.send(ctx, clientv3.WatchResponse{Header: header(revision), Events: toEvents(events)}) {
			return
		}
		if asked && !w.send(ctx, clientv3.WatchResponse{Header: header(revision)}) {
			return
		}
	}
}

func (w *watch) send(ctx context.Context, r clientv3.WatchResponse) bool {
	select {
	case w.to <- r:
		return true
	case <-ctx.Done():
		return false
	}
}

func toEvents(events []*server.Event) []*clientv3.Event {
	all := make([]*clientv3.Event, len(events))
	for i, e := range events {
		all[i] = &clientv3.Event{Type: mvccpb.PUT, Kv: toKV(e.KV)}
		if e.Delete {
			all[i].Type = mvccpb.DELETE
		}
		if !e.Create {
			all[i].PrevKv = toKV(e.PrevKV)
		}
	}
	return all
}
