// Package expiry removes keys at the end of their leases, from one heap and with one goroutine that sleeps while no lease
// ends. A lease is of one revision of a key: whoever removes it must leave the key alone when that has another one.
package expiry

import (
	"container/heap"
	"sync"
	"time"
)

const (
	// retryPause is before a removal that failed, as on a full disk, is tried again.
	retryPause = 10 * time.Second
	// gap puts leases that end at nearly the same time together.
	gap = 100 * time.Millisecond
)

// lease is when a revision of a key goes, if it is still the latest.
type lease struct {
	key      string
	revision int64
	until    time.Time
}

// Leases is what will expire.
type Leases struct {
	remove func(key string, revision int64) error

	mu     sync.Mutex
	heap   leases        // the first one on top
	sooner chan struct{} // holds a token when the first one has changed
}

// New returns no leases yet. A remove that fails is called again 10 seconds later.
func New(remove func(key string, revision int64) error) *Leases {
	return &Leases{remove: remove, sooner: make(chan struct{}, 1)}
}

// Add adds a lease of a number of seconds, from when the revision was written or, for those that were there, read: the clock
// of a machine that has just booted says nothing.
func (l *Leases) Add(key string, revision, seconds int64, from time.Time) {
	added := lease{key, revision, from.Add(time.Duration(seconds) * time.Second)}
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

// Run removes what is over until ending is closed.
func (l *Leases) Run(ending <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-l.sooner:
		case <-ending:
			return
		}
		over, next := l.due(time.Now())
		for _, o := range over {
			if err := l.remove(o.key, o.revision); err != nil {
				later := time.Now().Add(retryPause)
				l.again(lease{o.key, o.revision, later})
				if next.IsZero() || later.Before(next) {
					next = later
				}
			}
		}
		if !next.IsZero() {
			timer.Reset(max(time.Until(next), gap))
		}
	}
}

// due takes the leases that are over, and tells when the next one will be.
func (l *Leases) due(now time.Time) (over []lease, next time.Time) {
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

func (l *Leases) again(failed lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	heap.Push(&l.heap, failed)
}

type leases []lease

func (h leases) Len() int           { return len(h) }
func (h leases) Less(i, j int) bool { return h[i].until.Before(h[j].until) }
func (h leases) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *leases) Push(x any)        { *h = append(*h, x.(lease)) }
func (h *leases) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
