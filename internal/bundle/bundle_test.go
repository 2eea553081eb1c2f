package bundle_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/clusterd/clusterd/internal/bundle"
	"github.com/clusterd/clusterd/internal/bundle/archive"
)

// pack makes a payload in which runc has the given contents.
func pack(t *testing.T, runc []byte) fs.FS {
	t.Helper()
	sources, dir := t.TempDir(), t.TempDir()
	var files []archive.File
	for path, mode := range map[string]fs.FileMode{"runc": 0o755, "containerd-shim-runc-v2": 0o755, "cni/clusterd-cni": 0o755, "pause.tar": 0o644} {
		source := filepath.Join(sources, filepath.Base(path))
		data := []byte("contents of " + path)
		if path == "runc" {
			data = runc
		}
		if err := os.WriteFile(source, data, 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, archive.File{Path: path, Mode: mode, Source: source})
	}
	if err := archive.Pack(dir, files); err != nil {
		t.Fatal(err)
	}
	return os.DirFS(dir)
}

func extract(t *testing.T, payload fs.FS, dir string) bundle.Paths {
	t.Helper()
	paths, err := bundle.ExtractFrom(payload, dir)
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func TestExtract(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	paths := extract(t, pack(t, []byte("one")), dir)
	for path, mode := range map[string]fs.FileMode{
		paths.Runc: 0o755, paths.Shim: 0o755, filepath.Join(paths.CNIBin, "clusterd-cni"): 0o755, paths.PauseImage: 0o644,
	} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != mode {
			t.Errorf("%s has mode %v, want %v", path, info.Mode(), mode)
		}
	}
	if entries := list(t, dir); len(entries) != 1 || filepath.Join(dir, entries[0]) != filepath.Dir(paths.Runc) {
		t.Errorf("in the directory are %v, want that of %s alone", entries, paths.Runc)
	}
}

func TestExtractAgainTouchesNothing(t *testing.T) {
	dir, payload := t.TempDir(), pack(t, []byte("one"))
	before := stat(t, extract(t, payload, dir).Runc)
	after := stat(t, extract(t, payload, dir).Runc)
	if !os.SameFile(before, after) {
		t.Error("runc was written again")
	}
}

func TestExtractReplacesDamagedCopy(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"missing":   os.Remove,
		"truncated": func(path string) error { return os.Truncate(path, 1) },
		"mode":      func(path string) error { return os.Chmod(path, 0o600) },
		"no file":   func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o755)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, payload := t.TempDir(), pack(t, []byte("one"))
			if err := damage(extract(t, payload, dir).Runc); err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(extract(t, payload, dir).Runc)
			if err != nil || string(data) != "one" {
				t.Errorf("runc is %q, %v", data, err)
			}
			if entries := list(t, dir); len(entries) != 1 {
				t.Errorf("left in the directory: %v", entries)
			}
		})
	}
}

func TestExtractRefusesPayloadWithOtherHash(t *testing.T) {
	dir := t.TempDir()
	payload := fstest.MapFS{}
	for name, from := range map[string]fs.FS{archive.IndexName: pack(t, []byte("one")), archive.DataName: pack(t, []byte("two"))} {
		data, err := fs.ReadFile(from, name)
		if err != nil {
			t.Fatal(err)
		}
		payload[name] = &fstest.MapFile{Data: data}
	}
	if _, err := bundle.ExtractFrom(payload, dir); err == nil {
		t.Error("the payload was accepted")
	}
	if entries := list(t, dir); len(entries) != 0 {
		t.Errorf("left in the directory: %v", entries)
	}
}

func TestExtractWithoutPayload(t *testing.T) {
	if _, err := bundle.ExtractFrom(fstest.MapFS{"README.md": {}}, t.TempDir()); !errors.Is(err, bundle.ErrNoPayload) {
		t.Errorf("error is %v", err)
	}
}

func TestOldPayloadsStayWhileTheyRun(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	old := extract(t, pack(t, program), dir)
	process := exec.Command(old.Runc, "60")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	stop := func() {
		if err := process.Process.Kill(); err == nil {
			_ = process.Wait() // killed
		}
	}
	defer stop()
	other, half := filepath.Join(dir, "not-ours"), filepath.Join(dir, ".extract-1")
	for _, path := range []string{other, half} {
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}

	next := pack(t, []byte("next"))
	extract(t, next, dir)
	stat(t, old.Runc)
	stat(t, other)
	if _, err := os.Stat(half); !errors.Is(err, fs.ErrNotExist) {
		t.Error("an extraction that was cut short is still there")
	}
	stop()
	extract(t, next, dir)
	if _, err := os.Stat(old.Runc); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the old payload is still there though nothing runs from it")
	}
	stat(t, other)
}

func stat(t *testing.T, path string) fs.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
