package engine

import (
	"sync/atomic"
	"time"
)

// counts are what has happened since Open.
type counts struct {
	commits, revisions, refused, removed atomic.Int64
	commitNanos, slowestNanos            atomic.Int64
	diskFree                             atomic.Int64
	diskLow                              atomic.Bool
}

func (c *counts) commit(revisions int, took time.Duration) {
	c.commits.Add(1)
	c.revisions.Add(int64(revisions))
	c.commitNanos.Add(int64(took))
	if int64(took) > c.slowestNanos.Load() {
		c.slowestNanos.Store(int64(took)) // one goroutine commits
	}
}

// Stats is the state of a store and what it did since it was opened.
type Stats struct {
	Keys      int   // live keys, and deleted ones that are not compacted
	Current   int64 // the last revision
	Compacted int64 // reads below it are refused
	Garbage   int   // revisions that are, or will be after the next compaction, without a reader
	Ripe      int   // those of them that wait for removal now: the lag of compaction
	Settled   bool  // nothing is ripe, and the file has no more free pages than it should
	Watches   int
	FileBytes int64 // size of the file, without its write-ahead log
	FreeBytes int64 // the part of it that holds nothing

	DiskLow  bool  // the file system is nearly full, as of the last writes
	DiskFree int64 // bytes free on it then

	Commits, Revisions, Refused, Removed int64
	CommitTime, SlowestCommit            time.Duration // of all commits together, and of the slowest
}

// Stats reads the state. It looks for ripe revisions one by one, so it is for scrapes, not for loops.
func (e *Engine) Stats() (Stats, error) {
	all, free, size, err := e.file.pages()
	if err != nil {
		return Stats{}, e.file.explain(err)
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	s := Stats{
		Keys: e.index.keys.Len(), Current: e.current, Compacted: e.compacted, Garbage: e.index.garbage.len(),
		Watches: len(e.watches), FileBytes: all * size, FreeBytes: free * size,
		Commits: e.counts.commits.Load(), Revisions: e.counts.revisions.Load(), Refused: e.counts.refused.Load(),
		Removed: e.counts.removed.Load(), CommitTime: time.Duration(e.counts.commitNanos.Load()),
		SlowestCommit: time.Duration(e.counts.slowestNanos.Load()), DiskLow: e.counts.diskLow.Load(), DiskFree: e.counts.diskFree.Load(),
	}
	for s.Ripe < s.Garbage && e.index.garbage.peek(s.Ripe).since <= e.compacted {
		s.Ripe++
	}
	s.Settled = s.Ripe == 0 && !tooManyFree(all, free, size)
	return s, nil
}

// Revisions are the last revision and the compacted one.
type Revisions struct{ Current, Compacted int64 }

// Revisions reads both together.
func (e *Engine) Revisions() Revisions {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return Revisions{e.current, e.compacted}
}
