package hostos

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// change waits until a change is told.
func change(t *testing.T, changes <-chan struct{}, of string) {
	t.Helper()
	select {
	case <-changes:
	case <-time.After(30 * time.Second):
		t.Fatalf("not told of %s", of)
	}
}

func TestFileChanges(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	file, target := filepath.Join(dir, "resolv.conf"), filepath.Join(elsewhere, "real.conf")
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	changes := FileChanges(ctx, []string{file, filepath.Join(dir, "none", "file")})
	do(os.WriteFile(file, []byte("1"), 0o644))
	change(t, changes, "a file that appears")
	do(os.WriteFile(file, []byte("2"), 0o644))
	change(t, changes, "a file that is written")
	do(os.Link(file, filepath.Join(elsewhere, "same.conf")))
	do(os.WriteFile(filepath.Join(elsewhere, "same.conf"), []byte("2b"), 0o644))
	change(t, changes, "a file that is written from another folder")
	do(os.WriteFile(target, []byte("3"), 0o644))
	do(os.Symlink(target, file+".new"))
	do(os.Rename(file+".new", file))
	change(t, changes, "a file that becomes a link")
	do(os.WriteFile(target, []byte("4"), 0o644))
	change(t, changes, "the file that the link leads to")
	cancel()
	for range changes { // until it is closed
	}
}
