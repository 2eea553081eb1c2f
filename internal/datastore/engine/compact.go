package engine

import (
	"time"
)

// A slice of compaction removes between minSlice and maxSlice revisions: twice as many as the last when that took less than
// half of sliceTime, half when it took more.
const (
	minSlice  = 64
	maxSlice  = 4096
	sliceTime = 10 * time.Millisecond
)

// restFactor is how many times as long as a slice that took too long compaction rests after it: a slow disk is left to the
// writers for most of the time.
const restFactor = 4

// Free pages go back to the file system when they are more than spareBytes and more than a quarter of the file, sliceBytes
// at a time: those that a busy cluster uses again soon are kept.
const (
	spareBytes  = 8 << 20
	sliceBytes  = 1 << 20
	retryPeriod = time.Minute
)

// foldBytes is how much the file gets shorter between two checkpoints, which do it: cutting off hundreds of megabytes at a time
// takes a file system too long.
const foldBytes = 16 << 20

// maintain does a slice of what is to be cleaned up and reports whether there is more, to be done after a pause.
func (e *Engine) maintain() (more bool, pause time.Duration) {
	began := time.Now()
	if rest := e.writer.rest.Sub(began); rest > 0 {
		return e.writer.resting, rest
	}
	n := e.ripe()
	var err error
	if n > 0 {
		err = e.removeGarbage(n)
		more = true
	} else {
		more, err = e.giveBack()
	}
	if err != nil {
		// On a full disk this fails as writes do. The next one after a while tries again.
		e.refuse(err)
		e.writer.rest, e.writer.resting = began.Add(retryPeriod), false
		return false, 0
	}
	took := time.Since(began)
	switch {
	case n == e.writer.sliceSize && took < sliceTime/2:
		e.writer.sliceSize = min(2*e.writer.sliceSize, maxSlice)
	case took > sliceTime:
		e.writer.sliceSize = max(e.writer.sliceSize/2, minSlice)
		pause = restFactor * took
		e.writer.rest, e.writer.resting = time.Now().Add(pause), more
	}
	return more, pause
}

// ripe is how many revisions the next slice removes. Only the writer changes what it reads, but for what a copy still needs.
func (e *Engine) ripe() int {
	g := &e.index.garbage
	until := e.compacted
	if copying := e.copying.Load(); copying > 0 {
		until = min(until, copying)
	}
	n := 0
	for n < min(g.len(), e.writer.sliceSize) && g.peek(n).since <= until {
		n++
	}
	return n
}

// removeGarbage removes the n oldest revisions that nobody can read, first from the file.
func (e *Engine) removeGarbage(n int) error {
	revisions := make([]int64, n)
	for i := range revisions {
		revisions[i] = e.index.garbage.peek(i).revision
	}
	if err := e.file.remove(revisions); err != nil {
		return err
	}
	e.mu.Lock()
	for i := range n {
		e.index.drop(e.index.garbage.peek(i))
	}
	e.index.garbage.pop(n)
	e.mu.Unlock()
	for _, r := range revisions {
		e.cache.drop(r)
	}
	e.counts.removed.Add(int64(n))
	e.writer.dirty = true
	return nil
}

// giveBack returns some free pages to the file system when there are many.
func (e *Engine) giveBack() (more bool, err error) {
	if !e.writer.dirty {
		return false, nil
	}
	all, free, size, err := e.file.pages()
	if err != nil {
		return false, err
	}
	if e.writer.given >= foldBytes || e.writer.given > 0 && !tooManyFree(all, free, size) {
		e.writer.given = 0
		return true, e.file.fold()
	}
	if !tooManyFree(all, free, size) {
		e.writer.dirty = false
		return false, nil
	}
	e.writer.given += sliceBytes
	return true, e.file.shrink(sliceBytes / size)
}

func tooManyFree(all, free, size int64) bool { return free*size >= spareBytes && free >= all/4 }
