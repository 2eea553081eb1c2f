package archive_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/clusterd/clusterd/internal/bundle/archive"
)

func TestPackIsDeterministic(t *testing.T) {
	source := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(source, bytes.Repeat([]byte("contents"), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	one, two := t.TempDir(), t.TempDir()
	for _, dir := range []string{one, two} {
		if err := archive.Pack(dir, []archive.File{{Path: "dir/file", Mode: 0o755, Source: source}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{archive.IndexName, archive.DataName} {
		a, err := os.ReadFile(filepath.Join(one, name))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(two, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s differs between two runs", name)
		}
	}
}

func TestPackRefusesPathsThatLeaveTheDirectory(t *testing.T) {
	source := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(source, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"../file", "/etc/passwd", ""} {
		if err := archive.Pack(t.TempDir(), []archive.File{{Path: path, Mode: fs.FileMode(0o644), Source: source}}); err == nil {
			t.Errorf("path %q was accepted", path)
		}
	}
}
