package engine

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLow(t *testing.T) {
	for _, c := range []struct {
		free, total int64
		was, want   bool
	}{
		{300 << 20, 100 << 30, false, false},
		{200 << 20, 100 << 30, false, true},
		{300 << 20, 100 << 30, true, true},
		{600 << 20, 100 << 30, true, false},
		{60 << 20, 1 << 30, false, false},
		{40 << 20, 1 << 30, false, true},
	} {
		if got := low(c.free, c.total, c.was); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// The alarm comes before writes fail, is said once, and goes.
func TestNearlyFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"); err != nil {
		t.Skipf("mount a small file system: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	var lines bytes.Buffer
	e, err := Open(t.Context(), Config{Path: filepath.Join(dir, "state.db"), diskPeriod: 1, Log: slog.New(slog.NewTextHandler(&lines, nil))})
	if err != nil {
		t.Fatal(err)
	}
	state := func() bool {
		t.Helper()
		put(t, e, "/a", "x")
		put(t, e, "/b", "x") // comes after the look
		s, err := e.Stats()
		if err != nil {
			t.Fatal(err)
		}
		return s.DiskLow
	}
	if state() {
		t.Error("an empty disk is low")
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 61<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if !state() || !state() {
		t.Error("no alarm")
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if state() {
		t.Error("the alarm stays")
	}
	e.Close()
	if n := strings.Count(lines.String(), "nearly full"); n != 1 || !strings.Contains(lines.String(), "room again") {
		t.Errorf("%d lines say that the disk is nearly full:\n%s", n, &lines)
	}
}
