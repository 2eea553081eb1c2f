package engine

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// lease is when a version of a key goes, if it is still the latest.
type lease struct {
	key      string
	revision int64
	until    time.Time
}

// leases is what will expire, the first one on top. A lease counts from when its version was written or, for those in the
// file, read: the clock of a machine that has just booted says nothing.
type leases struct {
	mu     sync.Mutex
	heap   leaseHeap
	sooner chan struct{} // holds a token when the first one has changed
}

func newLeases() *leases { return &leases{sooner: make(chan struct{}, 1)} }

func (l *leases) add(key string, v version, from time.Time) {
	added := lease{key, v.revision, from.Add(time.Duration(v.lease) * time.Second)}
	l.mu.Lock()
	heap.Push(&l.heap, added)
	first := l.heap[0] == added
	l.mu.Unlock()
	if !first {
		return
	}
	select {
	case l.sooner <- struct{}{}:
	default:
	}
}

// due takes the leases that are over, and tells when the next one will be.
func (l *leases) due(now time.Time) (over []lease, next time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.heap) > 0 {
		if l.heap[0].until.After(now) {
			return over, l.heap[0].until
		}
		over = append(over, heap.Pop(&l.heap).(lease))
	}
	return over, time.Time{}
}

// expireAll removes keys at the end of their leases. While there are none it sleeps.
func (e *Engine) expireAll() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-e.leases.sooner:
		case <-e.ending:
			return
		}
		over, next := e.leases.due(time.Now())
		for _, l := range over {
			// A key that was written since has another lease, or none.
			if _, _, _, err := e.Delete(context.Background(), l.key, l.revision); err != nil {
				next = time.Now().Add(retryExpiry)
				e.leases.put(lease{l.key, l.revision, next})
			}
		}
		if !next.IsZero() {
			timer.Reset(max(time.Until(next), expiryGap))
		}
	}
}

// retryExpiry is the pause after a removal that failed, as on a full disk. expiryGap puts leases that end at nearly the same
// time together.
const (
	retryExpiry = 10 * time.Second
	expiryGap   = 100 * time.Millisecond
)

func (l *leases) put(again lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	heap.Push(&l.heap, again)
}

type leaseHeap []lease

func (h leaseHeap) Len() int           { return len(h) }
func (h leaseHeap) Less(i, j int) bool { return h[i].until.Before(h[j].until) }
func (h leaseHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *leaseHeap) Push(x any)        { *h = append(*h, x.(lease)) }
func (h *leaseHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
