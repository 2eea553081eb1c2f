package engine

import (
	"runtime"
	"sync"
	"time"
)

// batchWrites and batchBytes bound one transaction.
const (
	batchWrites = 512
	batchBytes  = 4 << 20
)

// inbox holds the writes that wait for a transaction, in the order in which they came.
type inbox struct {
	wake chan struct{} // holds a token when writes may have come

	mu     sync.Mutex
	writes []*write
	closed bool
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

// put adds a write and returns false when none is taken any more.
func (i *inbox) put(w *write) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return false
	}
	i.writes = append(i.writes, w)
	select {
	case i.wake <- struct{}{}:
	default:
	}
	return true
}

// next waits for writes and returns those of a transaction; none when later fires first, and false at the end.
func (i *inbox) next(later <-chan time.Time, ending <-chan struct{}) ([]*write, bool) {
	for {
		select {
		case <-ending:
			i.close()
			return nil, false
		default:
		}
		if i.gather() {
			return i.take(), true
		}
		select {
		case <-i.wake:
		case <-later:
			return nil, true
		case <-ending:
		}
	}
}

// gather lets those run that are about to write, as long as that brings more writes: a transaction costs most of what it does
// for its commit. It returns whether there are any.
func (i *inbox) gather() bool {
	for before := 0; ; runtime.Gosched() {
		n := i.len()
		if n == before || n >= batchWrites {
			return n > 0
		}
		before = n
	}
}

func (i *inbox) len() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.writes)
}

func (i *inbox) take() []*write {
	i.mu.Lock()
	defer i.mu.Unlock()
	n, bytes := 0, 0
	for n < len(i.writes) && n < batchWrites && bytes < batchBytes {
		bytes += len(i.writes[n].value)
		n++
	}
	batch := i.writes[:n:n]
	i.writes = i.writes[n:]
	if len(i.writes) == 0 {
		i.writes = nil // else what is appended would follow a batch that is in memory no longer than its transaction
	}
	return batch
}

// close refuses all writes from now on, those that wait too.
func (i *inbox) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	for _, w := range i.writes {
		w.outcome = outcome{err: errClosed}
		close(w.done)
	}
	i.writes = nil
}
