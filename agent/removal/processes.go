package removal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clusterd/clusterd/internal/ledger"
)

const (
	// poll is how often it is looked whether processes have ended.
	poll = 50 * time.Millisecond
	// killTimeout is for processes to end that were killed; one that waits for a device or a server may take longer.
	killTimeout = 30 * time.Second
)

// StopPods asks the processes of all pods to end, kills those that have not after the grace, and then their shims. It
// returns how many processes there were.
func (m Machine) StopPods(ctx context.Context, grace time.Duration) (n int, err error) {
	shims, err := m.shims()
	if err != nil {
		return 0, err
	}
	pods, err := m.podProcesses(shims)
	if err != nil {
		return 0, err
	}
	n = len(pods) + len(shims)
	signal(pods, unix.SIGTERM)
	m.thaw()
	gone := func() (bool, error) {
		left, err := m.podProcesses(shims)
		return len(left) == 0, err
	}
	if done, err := until(ctx, grace, gone); err != nil {
		return n, err
	} else if !done {
		killed := func() (bool, error) {
			left, err := m.podProcesses(shims)
			signal(left, unix.SIGKILL) // again each time: one may have started others
			return len(left) == 0, err
		}
		if err := m.mustEnd(ctx, killed, func() []int { left, _ := m.podProcesses(shims); return left }); err != nil {
			return n, err
		}
	}
	ended := func() (bool, error) {
		left, err := m.shims()
		signal(left, unix.SIGKILL)
		return len(left) == 0, err
	}
	return n, m.mustEnd(ctx, ended, func() []int { left, _ := m.shims(); return left })
}

// mustEnd waits for processes that were killed, and names those that do not end.
func (m Machine) mustEnd(ctx context.Context, ended func() (bool, error), left func() []int) error {
	done, err := until(ctx, killTimeout, ended)
	if err == nil && !done {
		err = fmt.Errorf("end the pods: the processes %v do not end when they are killed: they wait for a device or a server that does not answer", left())
	}
	return err
}

// until polls until done says so or the time is over.
func until(ctx context.Context, limit time.Duration, done func() (bool, error)) (bool, error) {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for began := time.Now(); ; {
		if is, err := done(); is || err != nil {
			return is, err
		}
		if time.Since(began) >= limit {
			return false, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// signal leaves out those that have ended meanwhile.
func signal(pids []int, s unix.Signal) {
	for _, pid := range pids {
		_ = unix.Kill(pid, s) // who is still there is found by the next look
	}
}

// process is what /proc says of one.
type process struct {
	parent int
	exe    string
	dead   bool // has ended and waits for its parent to notice
}

func processes() (map[int]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	all := map[int]process{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue // it has ended
		}
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 2 {
			continue
		}
		parent, _ := strconv.Atoi(string(fields[1]))
		exe, _ := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		all[pid] = process{parent: parent, exe: exe, dead: fields[0][0] == 'Z' || fields[0][0] == 'X'}
	}
	return all, nil
}

// shims are the processes that run a program of the payload: the shims, and runc and the CNI endpoint if they were at work.
func (m Machine) shims() (pids []int, err error) {
	all, err := processes()
	for pid, p := range all {
		if strings.HasPrefix(p.exe, m.Dir.Payload()+"/") && !p.dead {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// podProcesses are those in the pods' control groups, and those that the shims have started: one by itself may not know of
// a container that was being made.
func (m Machine) podProcesses(shims []int) ([]int, error) {
	all, err := processes()
	if err != nil {
		return nil, err
	}
	found := map[int]bool{}
	for _, path := range m.Ledger.Names(ledger.Cgroup) {
		for _, pid := range groupProcesses(path) {
			found[pid] = true
		}
	}
	for pid := range all {
		if descends(all, pid, shims) {
			found[pid] = true
		}
	}
	maps.DeleteFunc(found, func(pid int, _ bool) bool { return all[pid].dead || slices.Contains(shims, pid) })
	return slices.Sorted(maps.Keys(found)), nil
}

// descends is whether a process has one of the others above it.
func descends(all map[int]process, pid int, from []int) bool {
	for seen := 0; pid > 1 && seen < len(all); seen++ {
		pid = all[pid].parent
		if slices.Contains(from, pid) {
			return true
		}
	}
	return false
}

// groupProcesses are the processes of a control group and of those below it.
func groupProcesses(root string) (pids []int) {
	_ = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return nil //nolint:nilerr // a group that has gone has no processes
		}
		data, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			return nil //nolint:nilerr // as above
		}
		for _, word := range strings.Fields(string(data)) {
			if pid, err := strconv.Atoi(word); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids
}

// thaw lets paused containers of version 1 take their signals.
func (m Machine) thaw() {
	for _, root := range m.Ledger.Names(ledger.Cgroup) {
		_ = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				_ = writeExisting(filepath.Join(path, "freezer.state"), "THAWED") // there is none with version 2
			}
			return nil
		})
	}
}

func writeExisting(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
