package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Lock claims the data directory for this process. It fails at once, with one
// line that names the holder's process ID, when another instance has it. The
// kernel drops the claim when the process ends, however it ends, so a lock file
// left by a killed process is no obstacle. release may be called once; keep it
// until then, since a claim that nothing refers to is collected as garbage.
//
// The root must exist: Lock can, and should, come before Prepare changes modes,
// and it makes the root itself if need be.
func (d Dir) Lock() (release func() error, err error) {
	if err := os.MkdirAll(d.root, 0o755); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	f, err := os.OpenFile(d.LockFile(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	if err := d.claim(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error { return unlock(f) }, nil
}

func (d Dir) claim(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("data directory %s is in use by another clusterd%s: stop it or choose another with --data-dir", d.root, holder(f))
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return record(f)
}

// record writes this process's ID for those who come second.
func record(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("write process ID: %w", err)
	}
	if _, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return fmt.Errorf("write process ID: %w", err)
	}
	return nil
}

// holder describes the process that has the lock, as far as the file tells.
func holder(f *os.File) string {
	buf := make([]byte, 32)
	n, _ := f.ReadAt(buf, 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (pid %d)", pid)
}

// unlock keeps the file: removing it would let a second instance lock a new one
// of the same name while a third still waits on the old.
func unlock(f *os.File) error {
	truncated := f.Truncate(0)
	// Closing is not enough: a child that this process is just starting holds the file until it executes its program.
	free := syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
	if err := errors.Join(truncated, free, f.Close()); err != nil {
		return fmt.Errorf("unlock data directory: %w", err)
	}
	return nil
}

// Holder is the process ID of the clusterd that has the data directory, and 0 if none has.
func (d Dir) Holder() (pid int, err error) {
	f, err := os.Open(d.LockFile())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look who has the data directory: %w", err)
	}
	defer f.Close()
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if err == nil {
		return 0, nil
	}
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return 0, fmt.Errorf("look who has the data directory: %w", err)
	}
	data, err := os.ReadFile(d.LockFile())
	if err == nil {
		pid, err = strconv.Atoi(strings.TrimSpace(string(data)))
	}
	if err != nil {
		return 0, fmt.Errorf("read who has the data directory: %w", err)
	}
	return pid, nil
}
