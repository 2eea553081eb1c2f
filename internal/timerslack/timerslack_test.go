package timerslack

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
)

// childVariable makes this executable a program that makes its own slack the kernel's and prints what its threads have, first
// and then.
const childVariable = "TIMERSLACK_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) == "" {
		os.Exit(m.Run())
	}
	first, err := values()
	if err == nil {
		err = Standard()
	}
	then, again := values()
	if err != nil || again != nil {
		fmt.Fprintln(os.Stderr, err, again)
		os.Exit(1)
	}
	fmt.Println(strings.Join(first, " "))
	fmt.Println(strings.Join(then, " "))
}

// values are the slacks of the process's threads, in the order of their start.
func values() ([]string, error) {
	ids, err := threads()
	var all []string
	for _, id := range ids {
		b, readErr := os.ReadFile("/proc/" + id + "/timerslack_ns")
		if os.IsNotExist(readErr) {
			continue // it has ended
		}
		if readErr != nil {
			return nil, readErr
		}
		all = append(all, strings.TrimSpace(string(b)))
	}
	return all, err
}

func TestThreads(t *testing.T) {
	if err := set(idle); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Standard(); err != nil {
			t.Error(err)
		}
	})
	hold := make(chan struct{})
	defer close(hold)
	for range 4 { // more threads than there were
		ready := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(ready)
			<-hold
		}()
		<-ready
	}
	got, err := values()
	if err != nil {
		t.Fatal(err)
	}
	if got[0] != "10000000" || got[1] != "50000" {
		t.Errorf("the main thread has %s ns and the runtime's monitor %s", got[0], got[1])
	}
	for n, v := range got[2:] {
		if v != "10000000" {
			t.Errorf("thread %d has %s ns", n+2, v)
		}
	}

	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childVariable+"=1")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	first, then, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if !strings.Contains(first, "10000000") {
		t.Errorf("a child does not inherit the slack, and need not be protected from it: %s", first)
	}
	if strings.Contains(then, "10000000") || then == "" {
		t.Errorf("a child that wants the standard slack has %s", then)
	}
}

func TestLoad(t *testing.T) {
	var l load
	look := func(took time.Duration, times int) (slack time.Duration, changes int) {
		for range times {
			if s, change := l.seen(took); change {
				slack = s
				changes++
			}
		}
		return slack, changes
	}
	for n, c := range []struct {
		took    time.Duration
		times   int
		slack   time.Duration
		changes int
	}{
		{time.Second, 1, 0, 0},                 // busy from the start: as it was
		{time.Millisecond, quiet - 1, 0, 0},    // not yet
		{2 * time.Second, 1, 0, 0},             // once more from the beginning
		{time.Millisecond, quiet + 3, idle, 1}, // now
		{time.Second / 2, 1, 0, 0},             // a collection of garbage
		{time.Millisecond, again, idle, 1},     // once more, for threads that are new
		{time.Second, 3, standard, 1},          // at once, and once
		{time.Millisecond, quiet + 3, idle, 1}, // idle again
		{time.Millisecond, 3 * again, idle, 3}, // and on
	} {
		if slack, changes := look(c.took, c.times); slack != c.slack || changes != c.changes {
			t.Errorf("step %d: slack %s after %d changes, not %s after %d", n, slack, changes, c.slack, c.changes)
		}
	}
}
