package hostos

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// told waits for a change, or for the end of changes.
func told(t *testing.T, changes <-chan struct{}) (open bool) {
	t.Helper()
	select {
	case _, open = <-changes:
		return open
	case <-time.After(10 * time.Second):
		t.Fatal("nothing is told")
	}
	return false
}

// answers is a timer whose reads end with these errors, one for each.
type answers chan error

func (a answers) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: "timer", Err: <-a}
}

func TestCancellations(t *testing.T) {
	timer := make(answers)
	changes := cancellations(timer)
	for range 2 {
		timer <- unix.ECANCELED
		if !told(t, changes) {
			t.Fatal("a cancelled timer ends the changes")
		}
	}
	timer <- fs.ErrClosed
	if told(t, changes) {
		t.Error("a closed timer is a change")
	}
}

func TestClockChangesEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	changes, err := ClockChanges(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	for told(t, changes) { // somebody else may have set the clock
	}
}

// TestClockChanges moves the clock by a nanosecond and back. That also makes the kernel forget what it knows of the clock's
// drift, so it is not for every machine.
func TestClockChanges(t *testing.T) {
	if os.Getenv("CLUSTERD_TEST_SET_CLOCK") == "" {
		t.Skip("sets the clock of the machine: CLUSTERD_TEST_SET_CLOCK=1 allows it")
	}
	changes, err := ClockChanges(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, offset := range []unix.Timeval{{Usec: 1}, {Sec: -1, Usec: 1e9 - 1}} {
		if _, err := unix.Adjtimex(&unix.Timex{Modes: unix.ADJ_SETOFFSET | unix.ADJ_NANO, Time: offset}); errors.Is(err, unix.EPERM) {
			t.Skip("needs the right to set the clock")
		} else if err != nil {
			t.Fatal(err)
		}
		told(t, changes)
	}
}
