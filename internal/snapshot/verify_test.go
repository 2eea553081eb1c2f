package snapshot

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// What is read again must be what was written, and not only whole.
func TestVerify(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	files := []member{{"server/db/state.db", write("db", "datastore")}, {"server/token", write("token", "one")}, {"server/none", filepath.Join(dir, "none")}}
	meta := Meta{Format: format, Revision: 7}
	archive := func(meta Meta) (string, map[string]digest) {
		t.Helper()
		var b bytes.Buffer
		written, err := pack(t.Context(), &b, meta, files)
		if err != nil {
			t.Fatal(err)
		}
		return write("archive", b.String()), written
	}
	path, written := archive(meta)
	if err := verify(t.Context(), path, meta, written, files); err != nil || len(written) != 2 {
		t.Errorf("wrote %d files: %v", len(written), err)
	}
	path, _ = archive(Meta{Format: format, Revision: 8})
	if verify(t.Context(), path, meta, written, files) == nil {
		t.Error("another description passes")
	}
	write("token", "two")
	if path, _ = archive(meta); verify(t.Context(), path, meta, written, files) == nil {
		t.Error("another content passes")
	}
	files[1].path = filepath.Join(dir, "gone")
	if path, _ = archive(meta); verify(t.Context(), path, meta, written, files) == nil {
		t.Error("a file less passes")
	}
	files[0].path = filepath.Join(dir, "gone")
	if _, err := pack(t.Context(), &bytes.Buffer{}, meta, files); err == nil {
		t.Error("an archive without a datastore is made")
	}
}
