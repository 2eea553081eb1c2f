package engine

import (
	"runtime"
	"slices"
	"sync"
	"time"
)

// batchWrites and batchBytes bound one transaction.
const (
	batchWrites = 512
	batchBytes  = 4 << 20
)

// gatherings is how often those that are about to write are let run before a transaction.
const gatherings = 2

// inbox holds the writes that wait for a transaction, in the order in which they came.
type inbox struct {
	wake    chan struct{} // holds a token when writes may have come
	several bool          // the last transaction was of more than one; for the goroutine that takes alone

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

// gather lets those run that are about to write, if the last transaction shows that there are any, and as long as that brings
// more: a transaction costs most of what it does for its commit. It returns whether there are writes. One that is alone does
// not wait, and none waits for long on a processor that has much else to do.
func (i *inbox) gather() bool {
	n := i.len()
	for round := 0; i.several && round < gatherings && n > 0 && n < batchWrites; round++ {
		runtime.Gosched()
		before := n
		if n = i.len(); n == before {
			break
		}
	}
	return n > 0
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
	i.several = n > 1
	i.writes = i.writes[n:]
	if len(i.writes) == 0 {
		i.writes = nil // else what is appended would follow a batch that is in memory no longer than its transaction
	}
	return batch
}

// remove takes back a write that nobody waits for any more, if it is still there: a disk that hangs must not gather them all.
func (i *inbox) remove(w *write) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if at := slices.Index(i.writes, w); at >= 0 {
		i.writes = slices.Delete(i.writes, at, at+1)
	}
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
