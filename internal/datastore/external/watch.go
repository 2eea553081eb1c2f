package external

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/k3s-io/kine/pkg/server"
)

// waitingEvents bounds what waits to be taken of one watch. One that is slower fails, and its reader begins again.
const waitingEvents = 100_000

// replayTimeout bounds the reading of events from before the watch.
const replayTimeout = time.Minute

// Watch gives the events of a range, each once and in order.
type Watch struct {
	f        *feed
	key, end string
	wake     chan struct{} // holds a token when there is something to take

	mu      sync.Mutex
	next    int64 // the first revision that is neither taken nor waiting
	waiting []*server.Event
	err     error
}

// Subscribe starts a watch of a range from the revision start on, or from the next one when that is 0. The error is
// server.ErrCompacted when events from start on are gone.
func (b *Backend) Subscribe(key, end string, start int64) (*Watch, error) {
	f := b.feed
	w := &Watch{f: f, key: key, end: end, wake: make(chan struct{}, 1)}
	f.mu.Lock()
	reached := f.revision
	if start <= 0 {
		start = reached + 1
	}
	w.next = max(start, reached+1)
	if f.closed {
		f.mu.Unlock()
		return nil, errClosed
	}
	f.watches[w] = struct{}{} // from here on the feed fills it
	f.mu.Unlock()
	if start > reached {
		return w, nil
	}
	past, err := b.replay(key, end, start, reached)
	if err != nil {
		w.Close()
		return nil, err
	}
	w.prepend(past)
	return w, nil
}

// replay reads the events from first to last, which the feed has been past.
func (b *Backend) replay(key, end string, first, last int64) ([]*server.Event, error) {
	ctx, cancel := context.WithTimeout(b.life, replayTimeout)
	defer cancel()
	if b.mirror != nil {
		return b.mirror.between(first, last)
	}
	batch, err := b.table.log.After(ctx, key, end, first-1, 0)
	if err != nil {
		return nil, b.outcome(ctx, err)
	}
	return between(batch.Events, first, last), nil
}

// between leaves out what is not from first to last.
func between(events []*server.Event, first, last int64) []*server.Event {
	for len(events) > 0 && events[len(events)-1].KV.ModRevision > last {
		events = events[:len(events)-1]
	}
	for len(events) > 0 && events[0].KV.ModRevision < first {
		events = events[1:]
	}
	return events
}

// prepend puts what was before the live events at the head.
func (w *Watch) prepend(events []*server.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var past []*server.Event
	for _, event := range events {
		if visible(event) && event.InRange(w.key, w.end) {
			past = append(past, event)
		}
	}
	w.waiting = append(past, w.waiting...)
	if len(w.waiting) > 0 {
		w.signal()
	}
}

// visible is whether an event is of a key, and not of the drivers' own.
func visible(event *server.Event) bool {
	return event.KV.Key != "compact_rev_key" && !strings.HasPrefix(event.KV.Key, "gap-")
}

// Close ends the watch.
func (w *Watch) Close() {
	w.f.mu.Lock()
	delete(w.f.watches, w)
	w.f.mu.Unlock()
}

// Ready holds a token when Next has something to give.
func (w *Watch) Ready() <-chan struct{} { return w.wake }

// Next returns what there is to take, which can be nothing, and the revision up to which that is all.
func (w *Watch) Next() ([]*server.Event, int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	events := w.waiting
	w.waiting = nil
	if len(events) == 0 && w.err != nil {
		return nil, w.next - 1, w.err
	}
	if w.err != nil {
		w.signal()
	}
	return events, w.next - 1, nil
}

func (w *Watch) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *Watch) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	w.signal()
}

// publish queues the watch's part of what brought the feed to revision. The feed's lock is held.
func (w *Watch) publish(events []*server.Event, revision int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return
	}
	for _, event := range events {
		if event.KV.ModRevision >= w.next && visible(event) && event.InRange(w.key, w.end) {
			w.waiting = append(w.waiting, event)
			w.signal()
		}
	}
	w.next = max(w.next, revision+1)
	if len(w.waiting) > waitingEvents {
		w.waiting, w.err = nil, server.ErrCompacted
	}
}
