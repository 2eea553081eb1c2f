// Package timerslack lets a process that has little to do sleep longer: the kernel may put wake-ups together that come a few
// milliseconds apart. An idle cluster wakes some 600 times a second otherwise, each time for a few microseconds of work, and
// the waking costs more than the work. The price is that a timer may come as much later then; under load all are precise.
//
// The kernel keeps the slack with each thread, and hands it down to threads and processes that the thread starts (prctl(2),
// PR_SET_TIMERSLACK). A program that must not sleep longer because its parent may calls Standard.
package timerslack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// standard is the kernel's own slack (proc_pid_timerslack_ns(5)).
	standard = 50 * time.Microsecond
	// idle is as long as the Go runtime's monitor sleeps by itself when nothing happens.
	idle = 10 * time.Millisecond
	// look is how often the load is looked at.
	look = time.Second
	// busy is the mean processor time within look from which on timers are precise.
	busy = look / 4
	// smooth is over how many looks the mean is taken: a collection of garbage, every few seconds, is no load.
	smooth = 4
	// quiet is how many looks in a row must see less than busy before wake-ups are put together.
	quiet = 10
	// again is how many looks later the threads that have come since are given the slack too.
	again = 60
	// monitor is the place of the Go runtime's monitor among the process's threads: main starts it before any other. It
	// takes the processor back from system calls that block, and must not come late.
	monitor = 1
)

// Follow adapts the slack of the process's threads to its load until ctx ends; from then on it is the kernel's. The error says why that is impossible here: the
// kernel has no such file, or does not let this user write it.
func Follow(ctx context.Context) error {
	var l load
	tick := time.NewTicker(look)
	defer tick.Stop()
	before, err := used()
	for err == nil {
		select {
		case <-ctx.Done():
			return Standard()
		case <-tick.C:
		}
		var now time.Duration
		if now, err = used(); err != nil {
			break
		}
		if slack, change := l.seen(now - before); change {
			err = set(slack)
		}
		before = now
	}
	return err
}

// Standard gives all threads of the process the kernel's own slack.
func Standard() error { return set(standard) }

// load decides from the processor time of each look.
type load struct {
	mean time.Duration
	calm int // looks in a row
}

// seen is the slack to set after a look in which the process took the time; without change all threads have it.
func (l *load) seen(took time.Duration) (slack time.Duration, change bool) {
	l.mean += (took - l.mean) / smooth
	if l.mean >= busy {
		was := l.calm
		l.calm = 0
		return standard, was >= quiet
	}
	l.calm++
	return idle, l.calm >= quiet && (l.calm-quiet)%again == 0
}

// used is the processor time that the process has taken.
func used() (time.Duration, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("read the processor time of the process: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// set gives the slack to all threads but the runtime's monitor, which has the kernel's, and to those that they start meanwhile.
func set(slack time.Duration) error {
	done := map[string]bool{}
	for more := true; more; {
		ids, err := threads()
		if err != nil {
			return err
		}
		more = false
		for n, id := range ids {
			if done[id] {
				continue
			}
			done[id], more = true, true
			value := slack
			if n == monitor {
				value = standard
			}
			err := os.WriteFile("/proc/"+id+"/timerslack_ns", []byte(strconv.FormatInt(value.Nanoseconds(), 10)), 0)
			if gone := errors.Is(err, syscall.ESRCH) || errors.Is(err, fs.ErrNotExist) && n > 0; err != nil && !gone {
				return fmt.Errorf("set a thread's timer slack: %w", err)
			}
		}
	}
	return nil
}

// threads are the process's threads in the order of their start.
func threads() ([]string, error) {
	dir, err := os.Open("/proc/self/task")
	if err != nil {
		return nil, fmt.Errorf("list the threads of the process: %w", err)
	}
	defer dir.Close()
	// Not os.ReadDir, which sorts by name: numbers start anew after the highest one.
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list the threads of the process: %w", err)
	}
	return names, nil
}
