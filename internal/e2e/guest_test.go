//go:build e2e && guest

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// guestTimeout is far more than an idle machine needs: the guest has one slow CPU.
const guestTimeout = 20 * time.Minute

// TestGuest boots a user-mode-linux kernel, which has cgroup v2 alone and every privilege, on the machine's own root and
// runs clusterd in it. testdata/guest is the guest's first process.
func TestGuest(t *testing.T) {
	guest, err := filepath.Abs(filepath.Join("testdata", "guest"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), guestTimeout)
	defer cancel()
	kernel := exec.CommandContext(ctx, "linux.uml", "mem=2G", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro",
		"init="+guest, "clusterd="+binary, "con=null", "con0=null,fd:1", "con1=null,fd:1", "quiet")
	kernel.Env = append(os.Environ(), "TMPDIR=/dev/shm", "HOME="+t.TempDir()) // its memory is a file there; its control socket, in HOME
	began := time.Now()
	out, err := kernel.CombinedOutput()
	t.Logf("the guest ran for %.0f s", time.Since(began).Seconds())
	if err != nil {
		t.Errorf("the guest ended with %v", err)
	}
	// The status of the end says whether it took longer than it may, which depends on the machine.
	wants(t, string(out), "guest: cgroup controllers: cpu io memory pids", "guest: node Ready", "guest: pod Running",
		"guest: the server ended with")
}
