package lab_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/clusterd/clusterd/internal/testkit/lab"
)

// up makes a node in a lab of this test's own.
func up(t *testing.T) *lab.Node {
	t.Helper()
	for _, tool := range []string{"ip", "nsenter", "unshare"} {
		if _, err := exec.LookPath(tool); err != nil || os.Geteuid() != 0 {
			t.Skipf("a lab needs root and %s", tool)
		}
	}
	t.Setenv("LAB_DIR", "")
	before := mountPoints()
	l, err := lab.New("/var/tmp/clusterd-lab-unit")
	if err != nil {
		t.Fatal(err)
	}
	n, err := l.Up(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Clean(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		for _, dir := range mountPoints() {
			if !slices.Contains(before, dir) {
				t.Errorf("the lab leaves %s on the machine", dir)
			}
		}
	})
	return n
}

// mountPoints lists the directories of the machine that exist of those that a node has of its own.
func mountPoints() (found []string) {
	for _, dir := range []string{"/etc/clusterd", "/var/lib/clusterd", "/var/lib/kubelet", "/var/lib/cni", "/var/lib/containerd"} {
		if _, err := os.Stat(dir); err == nil {
			found = append(found, dir)
		}
	}
	return found
}

func TestNode(t *testing.T) {
	n := up(t)
	t.Run("command", func(t *testing.T) {
		out, err := n.Output(t.Context(), "hostname")
		if err != nil || strings.TrimSpace(out) != "one" {
			t.Errorf("hostname: %q, %v; want one", out, err)
		}
		var exit *exec.ExitError
		if _, err := n.Output(t.Context(), "sh", "-c", "exit 3"); !errors.As(err, &exit) || exit.ExitCode() != 3 {
			t.Errorf("exit status: %v; want 3", err)
		}
	})
	t.Run("files", func(t *testing.T) {
		if _, err := n.Output(t.Context(), "sh", "-c", "echo hello >/run/greeting"); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(n.Path("/run/greeting")); err != nil || string(b) != "hello\n" {
			t.Errorf("read %s: %q, %v", n.Path("/run/greeting"), b, err)
		}
		if _, err := os.Stat("/run/greeting"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the node wrote to the machine's /run: %v", err)
		}
	})
	t.Run("network", func(t *testing.T) {
		l, err := n.Network().Listen("tcp", n.Addr()+":9999")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			if c, err := l.Accept(); err == nil {
				_, _ = c.Write([]byte("hi"))
				c.Close()
			}
		}()
		c, err := n.Network().DialContext(t.Context(), "tcp", n.Addr()+":9999")
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(c); err != nil || string(b) != "hi" {
			t.Errorf("read from the node: %q, %v", b, err)
		}
		if c, err := net.DialTimeout("tcp", "127.0.0.1:9999", time.Second); err == nil {
			c.Close()
			t.Error("the node's listener can be reached from outside")
		}
	})
	t.Run("process", func(t *testing.T) {
		var out bytes.Buffer
		p, err := n.Start(&out, []string{"WORD=yes"}, "sh", "-c", `trap 'echo "$WORD"; exit 4' TERM; while :; do sleep 0.05; done`)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Wait(300 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("it ended by itself: %v", err)
		}
		if err := p.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		var exit *exec.ExitError
		if err := p.Wait(30 * time.Second); !errors.As(err, &exit) || exit.ExitCode() != 4 || out.String() != "yes\n" {
			t.Errorf("ended with %v and printed %q; want exit status 4 and yes", err, out.String())
		}
	})
}
