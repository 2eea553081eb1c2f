package engine

import (
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// The disk counts as nearly full when less than lowBytes and less than lowShare of it are free for writers without
// privileges, and not any more from twice as much on. It is looked at with writes, not more often than diskPeriod.
const (
	lowBytes   = 256 << 20
	lowShare   = 0.05
	diskPeriod = 30 * time.Second
)

// disk is the state of the file system that the store is on.
type disk struct {
	period time.Duration
	looked time.Time
	low    bool
}

// lookAtDisk says once that the disk is nearly full, and once that it is not any more.
func (e *Engine) lookAtDisk(now time.Time) {
	d := &e.writer.disk
	if now.Sub(d.looked) < d.period {
		return
	}
	d.looked = now
	free, total, err := space(filepath.Dir(e.file.path))
	if err != nil {
		e.log.Debug("look at the datastore's disk", "err", err)
		return
	}
	e.counts.diskFree.Store(free)
	was := d.low
	d.low = low(free, total, was)
	e.counts.diskLow.Store(d.low)
	switch {
	case d.low && !was:
		e.log.Warn("the disk of the datastore is nearly full: make room, or writes will be refused", "free", megabytes(free), "folder", filepath.Dir(e.file.path))
	case was && !d.low:
		e.log.Info("the disk of the datastore has room again", "free", megabytes(free))
	}
}

// low is whether a disk is nearly full, given whether it was.
func low(free, total int64, was bool) bool {
	limit := min(lowBytes, int64(float64(total)*lowShare))
	if was {
		limit *= 2
	}
	return free < limit
}

// space is what is free for everybody on the file system of a folder, and its size, in bytes.
func space(folder string) (free, total int64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(folder, &s); err != nil {
		return 0, 0, fmt.Errorf("statfs %s: %w", folder, err)
	}
	return int64(s.Bavail) * s.Bsize, int64(s.Blocks) * s.Bsize, nil
}

func megabytes(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }
