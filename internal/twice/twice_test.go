package twice_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/clusterd/clusterd/internal/twice"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
}

func TestEmptiedComesBack(t *testing.T) {
	t.Parallel()
	dir, copies := t.TempDir(), filepath.Join(t.TempDir(), "copies")
	var files []string
	for _, name := range []string{"whole", "emptied", "removed", "never"} {
		files = append(files, filepath.Join(dir, name))
	}
	for _, f := range files[:3] {
		write(t, f, "first")
	}
	if err := twice.Save(copies, files...); err != nil {
		t.Fatal(err)
	}
	write(t, files[0], "second")
	write(t, files[1], "second")
	if err := twice.Save(copies, files...); err != nil {
		t.Fatal(err)
	}
	write(t, files[1], "")
	write(t, files[3], "")
	if err := os.Remove(files[2]); err != nil {
		t.Fatal(err)
	}
	if err := twice.Save(copies, files...); err != nil { // takes no copy of what is empty
		t.Fatal(err)
	}
	restored, err := twice.Restore(copies, files...)
	if err != nil || !slices.Equal(restored, files[1:2]) {
		t.Errorf("restored %v, %v", restored, err)
	}
	for i, want := range []string{"second", "second"} {
		if got, err := os.ReadFile(files[i]); err != nil || string(got) != want {
			t.Errorf("%s has %q, %v", files[i], got, err)
		}
	}
	if info, err := os.Stat(files[1]); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("its mode is another one: %v, %v", info, err)
	}
	if _, err := os.Stat(files[2]); !os.IsNotExist(err) {
		t.Errorf("a removed file is back: %v", err)
	}
	if info, err := os.Stat(filepath.Join(copies, "whole")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the copy can be read by others: %v, %v", info, err)
	}
}
