package datadir_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestSecondLockNamesTheFirst(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "new")
	release, err := open(t, root).Lock()
	if err != nil {
		t.Fatal(err)
	}
	_, err = open(t, root).Lock()
	if err == nil {
		t.Fatal("locked twice")
	}
	want := fmt.Sprintf("data directory %s is in use by another clusterd (pid %d): stop it or choose another with --data-dir", root, os.Getpid())
	if err.Error() != want {
		t.Errorf("got  %s\nwant %s", err, want)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	release, err = open(t, root).Lock()
	if err != nil {
		t.Fatalf("after release: %v", err)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
}

// TestLockOutlivesNoProcess kills a process that holds the lock: this test's own
// program, which runs only TestHoldLock.
func TestLockOutlivesNoProcess(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHoldLock$")
	cmd.Env = append(os.Environ(), "HOLD_LOCK="+root)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe() // it ends with this process at the latest
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil { // it writes when it has the lock
		t.Fatal(err)
	}
	if _, err := open(t, root).Lock(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("(pid %d)", cmd.Process.Pid)) {
		t.Errorf("got %v, want an error that names process %d", err, cmd.Process.Pid)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // says that it was killed
	release, err := open(t, root).Lock()
	if err != nil {
		t.Fatalf("after the kill: %v", err)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
}

func TestHoldLock(t *testing.T) {
	root := os.Getenv("HOLD_LOCK")
	if root == "" {
		t.Skip("runs in a process of its own")
	}
	release, err := open(t, root).Lock()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("locked")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		t.Error(err)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
}
