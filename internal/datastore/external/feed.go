package external

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/k3s-io/kine/pkg/server"
)

// feedPause is between attempts to follow the database again.
const feedPause = time.Second

// feed is the stream of all events, in order and without gaps, from when the backend was opened.
type feed struct {
	b *Backend

	mu       sync.Mutex
	revision int64         // all events up to it are with their watches
	advanced chan struct{} // closed when revision grows
	watches  map[*Watch]struct{}
	closed   bool
}

func newFeed(b *Backend) *feed {
	return &feed{b: b, advanced: make(chan struct{}), watches: map[*Watch]struct{}{}}
}

// start follows the database from now until life ends.
func (f *feed) start(life context.Context) error {
	result := f.b.kine.Watch(life, 0)
	select {
	case err := <-result.Errorc:
		return err
	default:
	}
	if err := f.b.reload(life, result.CurrentRevision); err != nil {
		return err
	}
	f.advance(result.CurrentRevision, nil)
	f.b.running.Go(func() { f.follow(life, result.Eventc) })
	return nil
}

// follow hands on what comes. A stream that breaks off, as when the driver takes the feed for too slow, has left out events:
// all watches fail then, so that their readers begin again.
func (f *feed) follow(life context.Context, events <-chan server.EventBatch) {
	for {
		for batch := range events {
			f.advance(batch.CurrentRev, batch.Events)
		}
		if events = f.again(life); events == nil {
			f.fail(errClosed)
			return
		}
	}
}

// again follows the database from now on; nil when life is over.
func (f *feed) again(life context.Context) <-chan server.EventBatch {
	for life.Err() == nil {
		result := f.b.kine.Watch(life, 0)
		select {
		case <-result.Errorc:
		default:
			if f.b.reload(life, result.CurrentRevision) != nil {
				break
			}
			f.fail(server.ErrCompacted)
			f.advance(result.CurrentRevision, nil)
			return result.Eventc
		}
		select {
		case <-time.After(feedPause):
		case <-life.Done():
		}
	}
	return nil
}

var errClosed = errors.New("the datastore is closed")

// advance gives events to the watches of their ranges.
func (f *feed) advance(revision int64, events []*server.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(events) > 0 && (events[0] == nil || events[0].KV.ModRevision <= f.revision) {
		events = events[1:] // a stream that was joined again may begin earlier
	}
	if n := len(events); n > 0 {
		revision = max(revision, events[n-1].KV.ModRevision)
	}
	if revision <= f.revision {
		return
	}
	f.revision = revision
	if m := f.b.mirror; m != nil {
		for _, event := range events {
			m.apply(event)
		}
		m.reached(revision)
	}
	for w := range f.watches {
		w.publish(events, revision)
	}
	close(f.advanced)
	f.advanced = make(chan struct{})
}

func (f *feed) reached() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.revision
}

// await waits until the feed has come to revision, and tells whether it has.
func (f *feed) await(ctx context.Context, revision int64, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		f.mu.Lock()
		reached, advanced := f.revision, f.advanced
		f.mu.Unlock()
		if reached >= revision {
			return true
		}
		select {
		case <-advanced:
		case <-timer.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// fail ends all watches.
func (f *feed) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = errors.Is(err, errClosed)
	for w := range f.watches {
		w.fail(err)
	}
}
