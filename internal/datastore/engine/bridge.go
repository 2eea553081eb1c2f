package engine

import (
	"context"
	"errors"

	"github.com/k3s-io/kine/pkg/server"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
)

// requested is what a context holds the request of a watch under.
type requested struct{}

// WithRequest tells Watch which events are wanted: kine's bridge asks for all there are, so that each write would wake each
// watch, and keeps those of the request. It may still change the request until it calls Watch.
func WithRequest(ctx context.Context, r *etcdserverpb.WatchCreateRequest) context.Context {
	return context.WithValue(ctx, requested{}, r)
}

// wanted is the range of the request in ctx, all when there is none, and whether other writes do not matter.
func wanted(ctx context.Context) (key, end string, quiet bool) {
	r, ok := ctx.Value(requested{}).(*etcdserverpb.WatchCreateRequest)
	if !ok {
		return "", "", false
	}
	key, end = string(r.Key), string(r.RangeEnd)
	if key == "\x00" && end == "\x00" { // all there are, to the bridge
		key, end = "", ""
	}
	return key, end, !r.ProgressNotify
}

// Watch is the form of Subscribe that kine's bridge uses: in a channel.
func (e *Engine) Watch(ctx context.Context, start int64) server.WatchResult {
	events, failure := make(chan server.EventBatch), make(chan error, 1)
	key, end, quiet := wanted(ctx)
	e.mu.Lock() // until the watch has its goroutine: the engine may be closed at any time
	defer e.mu.Unlock()
	w, err := e.subscribe(key, end, start, quiet, events)
	result := server.WatchResult{CurrentRevision: e.current, Eventc: events, Errorc: failure}
	if errors.Is(err, server.ErrCompacted) {
		result.CompactRevision = e.compacted
	}
	if err != nil {
		close(events)
		return result
	}
	e.running.Go(func() {
		defer close(events)
		defer w.Close()
		if err := w.forward(ctx); err != nil {
			failure <- err
		}
	})
	return result
}

// forward puts what the watch could not give at once into its channel until ctx or the engine ends. The first batch says
// where it begins, for progress is reported only to watches that have had one.
func (w *Watch) forward(ctx context.Context) error {
	w.signal()
	for {
		select {
		case <-w.wake:
		case <-ctx.Done():
			return nil
		case <-w.e.ending:
			return nil
		}
		batch, revision, err := w.Next()
		if err != nil {
			return err
		}
		select {
		case w.direct <- server.EventBatch{Events: batch, CurrentRev: revision}:
		case <-ctx.Done():
			return nil
		case <-w.e.ending:
			return nil
		}
		w.mu.Lock()
		w.taking = false
		w.mu.Unlock()
	}
}
