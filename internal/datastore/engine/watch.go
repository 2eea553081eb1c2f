package engine

import (
	"errors"
	"sync"

	"github.com/k3s-io/kine/pkg/server"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// A watch that has more than this waiting to be taken reads it from the log later instead.
const (
	waitingEvents = 4096
	waitingBytes  = 4 << 20
)

// replayed is how many revisions a watch reads from the log at a time.
const replayed = 512

// Watch gives the events of a range, each once and in order.
type Watch struct {
	e        *Engine
	key, end string
	quiet    bool                   // wakes for its own events only
	wake     chan struct{}          // holds a token when there is something to take
	direct   chan server.EventBatch // of the bridge, which gets there what is published while it waits; nil without it

	mu      sync.Mutex
	start   int64
	floor   int64 // the revision up to which that is all before there was anything from start on
	next    int64 // the first revision that is neither taken nor waiting
	taken   int64 // the last revision that was given out
	taking  bool  // what was taken may not be in direct yet; without direct it means nothing
	behind  bool  // events from next on are in the log only
	waiting []*server.Event
	bytes   int
	err     error
}

// Subscribe starts a watch of a range from the revision start on, or from the next one when that is 0. A quiet one is told
// nothing of revisions that have no event for it. The error is server.ErrCompacted when events from start on are gone.
func (e *Engine) Subscribe(key, end string, start int64, quiet bool) (*Watch, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.subscribe(key, end, start, quiet, nil)
}

// subscribe is Subscribe with the lock held.
func (e *Engine) subscribe(key, end string, start int64, quiet bool, direct chan server.EventBatch) (*Watch, error) {
	if start <= 0 {
		start = e.current + 1
	}
	if start <= e.compacted {
		return nil, server.ErrCompacted
	}
	if e.closed {
		return nil, errClosed
	}
	w := &Watch{e: e, key: key, end: end, quiet: quiet, wake: make(chan struct{}, 1), direct: direct, start: start, next: start, taken: start - 1, behind: start <= e.current}
	w.floor = min(start-1, e.current) // nobody can say yet that a revision to come has no event
	e.watches[w] = struct{}{}
	if w.behind {
		w.wake <- struct{}{}
	}
	return w, nil
}

// Close ends the watch.
func (w *Watch) Close() {
	w.e.mu.Lock()
	delete(w.e.watches, w)
	w.e.mu.Unlock()
}

// fail makes Next return err once what waits is taken.
func (w *Watch) fail(err error) {
	w.mu.Lock()
	w.err = err
	w.mu.Unlock()
	w.signal()
}

func (w *Watch) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// publish queues the watch's part of a transaction that left the store at revision. The engine's lock is held, so that
// transactions come in order.
func (w *Watch) publish(events []*server.Event, revision int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.behind || revision < w.next {
		return // a watch from a revision to come
	}
	var matching []*server.Event
	for _, event := range events {
		if event.KV.ModRevision >= w.next && inRange(event.KV.Key, w.key, w.end) {
			matching = append(matching, event)
		}
	}
	w.next = revision + 1
	if w.quiet && len(matching) == 0 || w.give(matching, revision) {
		return
	}
	w.waiting = append(w.waiting, matching...)
	for _, event := range matching {
		w.bytes += eventBytes(event)
	}
	if len(w.waiting) > waitingEvents || w.bytes > waitingBytes {
		w.next = w.waiting[0].KV.ModRevision // what is before it may be compacted by now
		w.waiting, w.bytes, w.behind = nil, 0, true
	}
	w.signal()
}

// give hands events over at once to a bridge that waits for them, if there are no earlier ones on their way.
func (w *Watch) give(events []*server.Event, revision int64) bool {
	if w.direct == nil || w.taking || len(w.waiting) > 0 {
		return false
	}
	select {
	case w.direct <- server.EventBatch{Events: events, CurrentRev: revision}:
		w.taken = revision
		return true
	default:
		return false
	}
}

func eventBytes(event *server.Event) int {
	n := len(event.KV.Value) + len(event.KV.Key)
	if event.PrevKV != nil {
		n += len(event.PrevKV.Value)
	}
	return n
}

// Ready holds a token when Next has something to give.
func (w *Watch) Ready() <-chan struct{} { return w.wake }

// Next returns what there is to take, which can be nothing, and the revision up to which that is all.
func (w *Watch) Next() (events []*server.Event, revision int64, err error) {
	w.mu.Lock()
	w.taking = true
	if w.behind {
		next := w.next
		w.mu.Unlock()
		return w.replay(next)
	}
	defer w.mu.Unlock()
	events, w.waiting, w.bytes = w.waiting, nil, 0
	w.taken = w.next - 1
	if w.next == w.start {
		return nil, w.floor, w.err
	}
	if len(events) == 0 && w.err != nil {
		return nil, w.taken, w.err
	}
	return events, w.taken, nil
}

// replay reads the next events from the log, and joins the live ones when it has come to the end.
func (w *Watch) replay(next int64) ([]*server.Event, int64, error) {
	rows, err := w.e.file.after(next, replayed)
	if err != nil {
		w.e.log.Error("read the datastore's log", "err", w.e.file.explain(err))
		return nil, next - 1, rpctypes.ErrGRPCUnhealthy
	}
	events, replaced, last := w.match(rows, next-1)
	if err := w.e.fill(replaced); err != nil && !errors.Is(err, errGone) {
		return nil, next - 1, err
	}
	w.e.mu.RLock() // holds publish off
	defer w.e.mu.RUnlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if next <= w.e.compacted {
		return nil, next - 1, server.ErrCompacted
	}
	w.next, w.taken, w.behind = last+1, last, last < w.e.current
	if w.behind || w.err != nil {
		w.signal()
	}
	return events, last, nil
}

// match turns the rows of the watch's range into events, and returns the last revision it has looked at. The values of what
// was replaced are still to be filled.
func (w *Watch) match(rows []row, last int64) ([]*server.Event, []*server.KeyValue, int64) {
	var events []*server.Event
	var replaced []*server.KeyValue
	w.e.mu.RLock()
	defer w.e.mu.RUnlock()
	for _, r := range rows {
		if r.revision > w.e.current {
			break // on disk, but not published yet
		}
		last = r.revision
		if !inRange(r.key, w.key, w.end) {
			continue
		}
		event := &server.Event{Delete: r.deleted(), Create: r.count == 1 && r.created == r.revision, KV: keyValue(r.key, r.version)}
		event.KV.Value = r.value
		if n, found := w.e.index.get(r.key); found {
			// What an event that is not compacted replaced is not either, however old it is.
			if v, ok := n.before(r.revision); ok && r.revision > w.e.compacted {
				event.PrevKV = keyValue(r.key, v)
				replaced = append(replaced, event.PrevKV)
			}
		}
		events = append(events, event)
	}
	return events, replaced, last
}
