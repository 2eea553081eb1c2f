package hostos

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

func TestNotify(t *testing.T) {
	for name, path := range map[string]string{
		"file":     filepath.Join(t.TempDir(), "notify"),
		"abstract": fmt.Sprintf("@clusterd-test-%d", os.Getpid()),
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if err := notify(path, "READY=1\nSTATUS=ready"); err != nil {
				t.Fatal(err)
			}
			if err := l.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 64)
			n, err := l.Read(buf)
			if err != nil || string(buf[:n]) != "READY=1\nSTATUS=ready" {
				t.Errorf("got %q, %v", buf[:n], err)
			}
		})
	}
}

func TestNotifyNobody(t *testing.T) {
	if err := notify("", "READY=1"); err != nil {
		t.Error(err)
	}
	if err := notify(filepath.Join(t.TempDir(), "missing"), "READY=1"); err == nil {
		t.Error("nobody listens, but it was told")
	}
}

func TestNotifyTakesTheVariable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	// As in a process that has just started; the second call knows the socket from the first one.
	notifySocket = sync.OnceValue(takeNotifySocket)
	for range 2 {
		if err := Notify("STATUS=x"); err != nil {
			t.Fatal(err)
		}
		if _, there := os.LookupEnv("NOTIFY_SOCKET"); there {
			t.Error("NOTIFY_SOCKET is still there")
		}
		if err := l.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if n, err := l.Read(make([]byte, 64)); n != len("STATUS=x") || err != nil {
			t.Errorf("got %d bytes, %v", n, err)
		}
	}
}
