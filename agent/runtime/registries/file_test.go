package registries_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clusterd/clusterd/agent/runtime/registries"
)

func TestFileIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "registries.yaml")
	var logged bytes.Buffer
	file := registries.NewFile(path, slog.New(slog.NewTextHandler(&logged, nil)))
	if err := file.Load(); err != nil {
		t.Fatalf("a missing file is an error: %v", err)
	}
	for _, step := range []struct {
		name, contents string
		mirrors        int
	}{
		{"made", "mirrors: {a.example: {}}", 1},
		{"changed", "mirrors: {a.example: {}, b.example: {}}", 2},
		{"broken keeps the last", "mirrors: 1", 2},
		{"mended", "mirrors: {a.example: {}, b.example: {}, c.example: {}}", 3},
	} {
		if err := os.WriteFile(path, []byte(step.contents), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := len(file.Current().Mirrors); got != step.mirrors {
			t.Errorf("%s: %d mirrors, want %d", step.name, got, step.mirrors)
		}
		file.Current()
	}
	if n := strings.Count(logged.String(), "level=ERROR"); n != 1 {
		t.Errorf("the broken file was logged %d times:\n%s", n, &logged)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := len(file.Current().Mirrors); got != 0 {
		t.Errorf("removed: %d mirrors are left", got)
	}
}

func TestLoadRefusesBrokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "registries.yaml")
	if err := os.WriteFile(path, []byte("mirror: {}"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := registries.NewFile(path, slog.New(slog.DiscardHandler)).Load()
	if err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error is %v, want one with the path", err)
	}
}
