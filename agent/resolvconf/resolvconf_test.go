package resolvconf_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/clusterd/clusterd/agent/resolvconf"
)

func TestKeep(t *testing.T) {
	file, from := filepath.Join(t.TempDir(), "resolv.conf"), filepath.Join(t.TempDir(), "host.conf")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := resolvconf.Keep(ctx, file, from, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "nameserver 127.0.0.1\n" {
		t.Fatalf("without resolvers of the host: %q, %v", b, err)
	}
	for _, row := range []struct{ host, want string }{
		{"search a.example\nnameserver 127.0.0.53\nnameserver 192.0.2.53\n", "search a.example\nnameserver 192.0.2.53\n"},
		{"nameserver 192.0.2.54\noptions edns0\n", "nameserver 192.0.2.54\noptions edns0\n"},
		{"nameserver ::1\n", "nameserver 127.0.0.1\n"},
	} {
		if err := errors.Join(os.WriteFile(from+".new", []byte(row.host), 0o644), os.Rename(from+".new", from)); err != nil {
			t.Fatal(err)
		}
		await(t, file, row.want)
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o644 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func await(t *testing.T, file, want string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(b) == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the file holds %q, want %q", b, want)
		}
	}
}

func TestFileThatCannotBeWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "no", "resolv.conf")
	if err := resolvconf.Keep(t.Context(), file, "", slog.New(slog.DiscardHandler)); err == nil {
		t.Error("no error")
	}
}
