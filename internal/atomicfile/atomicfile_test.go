package atomicfile_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clusterd/clusterd/internal/atomicfile"
)

var writers = map[string]func(string, fs.FileMode, []byte) error{
	"Write": atomicfile.Write, "WriteDurable": atomicfile.WriteDurable,
}

func TestWriteReplacesContentAndMode(t *testing.T) {
	t.Parallel()
	for name, write := range writers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "f")
			for content, mode := range map[string]fs.FileMode{"secret": 0o600, "open": 0o666} {
				if err := write(path, mode, []byte(content)); err != nil {
					t.Fatal(err)
				}
				expectFile(t, path, content, mode)
			}
		})
	}
}

// TestReaderKeepsTheOldFile holds the old file open over a write.
func TestReaderKeepsTheOldFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	if err := atomicfile.Write(path, 0o600, []byte("old")); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := atomicfile.Write(path, 0o600, []byte("new")); err != nil {
		t.Fatal(err)
	}
	old := make([]byte, 3)
	if _, err := f.Read(old); err != nil || string(old) != "old" {
		t.Errorf("reader got %q, %v", old, err)
	}
}

func TestErrorLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, write := range writers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, "f")
			if err := os.MkdirAll(filepath.Join(path, "full"), 0o700); err != nil { // a file cannot replace it
				t.Fatal(err)
			}
			err := write(path, 0o600, []byte("x"))
			if err == nil || !strings.Contains(err.Error(), "write "+path) {
				t.Errorf("got %v, want an error that names the file", err)
			}
			entries, err := os.ReadDir(dir)
			if err != nil || len(entries) != 1 {
				t.Errorf("left %v, %v", entries, err)
			}
		})
	}
}

func TestMissingDirectory(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "no", "f")
	if err := atomicfile.Write(path, 0o600, nil); err == nil || !strings.Contains(err.Error(), "write "+path) {
		t.Errorf("got %v, want an error that names the file", err)
	}
}

func expectFile(t *testing.T, path, content string, mode fs.FileMode) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil || string(data) != content {
		t.Errorf("content %q, %v; want %q", data, err, content)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != mode {
		t.Errorf("mode %s, want %s", info.Mode(), mode)
	}
}
