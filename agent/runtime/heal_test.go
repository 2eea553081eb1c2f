package runtime

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"
)

const (
	overlaySnapshots = "io.containerd.snapshotter.v1.overlayfs"
	aBlob            = "192141ef8263726105c7530d1c86a3099531eb942171b7396da597c84358206b"
)

// fill makes a Root with whole databases and content.
func fill(t *testing.T) *Runtime {
	t.Helper()
	r := &Runtime{cfg: Config{Root: t.TempDir()}, log: slog.New(slog.DiscardHandler)}
	for _, name := range []string{metadataDir + "/meta.db", overlaySnapshots + "/metadata.db"} {
		path := r.at(t, name)
		db, err := bolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{overlaySnapshots + "/snapshots/1/fs/file", blobsDir + "/sha256/" + aBlob, importsFile} {
		if err := os.WriteFile(r.at(t, name), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(r.at(t, blobsDir+"/sha256/"+digest.FromBytes(nil).Encoded()), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return r
}

// at is a path below Root whose directory is there.
func (r *Runtime) at(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(r.cfg.Root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func (r *Runtime) there() (all []string) {
	for _, name := range []string{metadataDir + "/meta.db", overlaySnapshots + "/metadata.db", overlaySnapshots + "/snapshots/1/fs/file",
		blobsDir + "/sha256/" + aBlob, blobsDir + "/sha256/" + digest.FromBytes(nil).Encoded(), importsFile} {
		if _, err := os.Stat(filepath.Join(r.cfg.Root, name)); err == nil {
			all = append(all, filepath.Base(name))
		}
	}
	return all
}

func TestHeal(t *testing.T) {
	nothing := digest.FromBytes(nil).Encoded()
	for name, row := range map[string]struct {
		file, text string
		left       []string
		lost       []digest.Digest
	}{
		"nothing":          {left: []string{"meta.db", "metadata.db", "file", aBlob, nothing, importsFile}},
		"metadata emptied": {file: metadataDir + "/meta.db", left: []string{aBlob, nothing}},
		"metadata odd":     {file: metadataDir + "/meta.db", text: "what is this", left: []string{aBlob, nothing}},
		"snapshots":        {file: overlaySnapshots + "/metadata.db", left: []string{aBlob, nothing}},
		"content": {
			file: blobsDir + "/sha256/" + aBlob, left: []string{"meta.db", "metadata.db", "file", nothing},
			lost: []digest.Digest{digest.NewDigestFromEncoded(digest.SHA256, aBlob)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := fill(t)
			if row.file != "" {
				if err := os.WriteFile(r.at(t, row.file), []byte(row.text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			lost, err := r.heal()
			if err != nil || !slices.Equal(lost, row.lost) {
				t.Errorf("lost %v, %v, want %v", lost, err, row.lost)
			}
			if left := r.there(); !slices.Equal(left, row.left) {
				t.Errorf("left are %v, want %v", left, row.left)
			}
		})
	}
	first := &Runtime{cfg: Config{Root: filepath.Join(t.TempDir(), "none")}, log: slog.New(slog.DiscardHandler)}
	if lost, err := first.heal(); err != nil || len(lost) > 0 {
		t.Errorf("a first start: %v, %v", lost, err)
	}
}
