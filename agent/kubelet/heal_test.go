package kubelet

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

func TestEmptiedRecordsGo(t *testing.T) {
	root := t.TempDir()
	files := map[string]struct {
		text string
		gone bool
	}{
		"cpu_manager_state":                          {"", true},
		"memory_manager_state":                       {"{}", false},
		"device-plugins/kubelet_internal_checkpoint": {"", true},
		"pods/uid/volumes/data/empty":                {"", false},
	}
	for name, f := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(f.text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeEmptied(root, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	for name, f := range files {
		if _, err := os.Stat(filepath.Join(root, name)); os.IsNotExist(err) != f.gone {
			t.Errorf("%s: %v, want it gone: %v", name, err, f.gone)
		}
	}
	if err := removeEmptied(filepath.Join(root, "none"), slog.New(slog.DiscardHandler)); err != nil {
		t.Errorf("a first start: %v", err)
	}
}
