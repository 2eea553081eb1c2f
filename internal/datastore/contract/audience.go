package contract

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// audience is the watches that are open during random operations.
type audience struct {
	chaos   *chaos
	steady  []*spectator // from the first round to the last
	resumed []*spectator // begun again each round where they were
	late    []*spectator // begun at some revision of the past, for one round
	seen    int
	missed  int // late ones that compaction was ahead of
}

// spectator is one watch and what it has seen.
type spectator struct {
	key    string
	prefix bool
	from   int64 // sees everything from there on
	end    context.CancelFunc

	mu     sync.Mutex
	events []*clientv3.Event
	told   int64 // the last revision that it was told to have seen everything of
	err    error
	more   chan struct{} // holds a token when something has changed
}

func newAudience(t *testing.T, c *chaos) *audience {
	a := &audience{chaos: c}
	next := c.settled.Load() + 1
	for _, key := range []string{c.prefix, c.prefix + "g0/", c.prefix + "g1/1-1"} {
		a.steady = append(a.steady, c.spectate(t, key, strings.HasSuffix(key, "/"), next))
		a.resumed = append(a.resumed, c.spectate(t, key, strings.HasSuffix(key, "/"), next))
	}
	return a
}

// spectate begins a watch.
func (c *chaos) spectate(t *testing.T, key string, prefix bool, from int64) *spectator {
	s := &spectator{key: key, prefix: prefix, from: from, more: make(chan struct{}, 1)}
	opts := []clientv3.OpOption{clientv3.WithRev(from), clientv3.WithPrevKV(), clientv3.WithProgressNotify()}
	if prefix {
		opts = append(opts, clientv3.WithPrefix())
	}
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(t.Context()))
	s.end = cancel
	ch := c.Watch(ctx, key, opts...)
	go func() {
		for r := range ch {
			s.take(r)
		}
	}()
	return s
}

// take notes a response, and if it should not have come.
func (s *spectator) take(r clientv3.WatchResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		select {
		case s.more <- struct{}{}:
		default:
		}
	}()
	if s.err == nil {
		s.err = r.Err()
	}
	for _, e := range r.Events {
		if e.Kv.ModRevision <= s.told || e.Kv.ModRevision > r.Header.Revision {
			s.err = fmt.Errorf("event of %d in a response of %d after all up to %d", e.Kv.ModRevision, r.Header.Revision, s.told)
		}
		s.told = e.Kv.ModRevision
	}
	s.events = append(s.events, r.Events...)
	if r.IsProgressNotify() {
		s.told = max(s.told, r.Header.Revision)
	}
}

// begin starts a round.
func (a *audience) begin(t *testing.T, r *rand.Rand) {
	c := a.chaos
	settled := c.settled.Load()
	for i, s := range a.resumed {
		s.end()
		a.resumed[i] = c.spectate(t, s.key, s.prefix, settled+1)
	}
	for range 3 {
		from := max(c.asked.Load(), c.start) + 1
		from += r.Int64N(max(1, settled-from+1))
		a.late = append(a.late, c.spectate(t, c.group(r), true, from))
	}
	if err := c.RequestProgress(clientv3.WithRequireLeader(t.Context())); err != nil {
		t.Fatalf("ask for progress: %v", err)
	}
}

// compare wants every watch to have seen every event up to the end of the round once and in order, with events the ones of
// this round.
func (a *audience) compare(t *testing.T, events []*clientv3.Event) {
	t.Helper()
	for _, s := range append(a.steady, a.resumed...) {
		if err := s.compare(a.chaos, events); err != nil {
			t.Fatalf("watch of %s: %v", s.key, err)
		}
	}
	for _, s := range a.late {
		err := s.compare(a.chaos, a.chaos.model.events)
		s.end()
		if err == rpctypes.ErrCompacted && s.from <= a.chaos.asked.Load() {
			a.missed++
		} else if err != nil {
			t.Fatalf("watch of %s from %d: %v", s.key, s.from, err)
		}
	}
	a.late = nil
	a.seen += len(events)
}

// compare waits for those of events that the watch should see.
func (s *spectator) compare(c *chaos, events []*clientv3.Event) error {
	var want []*clientv3.Event
	for _, e := range events {
		key := string(e.Kv.Key)
		if e.Kv.ModRevision >= s.from && (key == s.key || s.prefix && strings.HasPrefix(key, s.key)) {
			want = append(want, e)
		}
	}
	got, err := s.await(len(want))
	for i := range min(len(got), len(want)) {
		if describe(got[i]) == describe(want[i]) {
			continue
		}
		// What was replaced is not there any more if the event itself is compacted.
		if got[i].PrevKv == nil && want[i].Kv.ModRevision <= c.asked.Load() && describeKV(got[i].Kv) == describeKV(want[i].Kv) {
			continue
		}
		return fmt.Errorf("%s, want %s", describe(got[i]), describe(want[i]))
	}
	if err == nil && len(got) > len(want) {
		err = fmt.Errorf("%s after all %d events", describe(got[len(want)]), len(want))
	}
	return err
}

// await takes n events, or fewer and an error, or more if there are.
func (s *spectator) await(n int) ([]*clientv3.Event, error) {
	late := time.After(patience)
	for {
		s.mu.Lock()
		events, err := s.events, s.err
		if len(events) >= n || err != nil {
			s.events = nil
			s.mu.Unlock()
			return events, err
		}
		s.mu.Unlock()
		select {
		case <-s.more:
		case <-late:
			return events, fmt.Errorf("%d events of %d", len(events), n)
		}
	}
}

func (a *audience) String() string {
	return fmt.Sprintf("%d watches saw all of %d events, %d from the past were too late for a compaction", len(a.steady)+len(a.resumed), a.seen, a.missed)
}
