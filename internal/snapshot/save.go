package snapshot

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clusterd/clusterd/internal/atomicfile"
	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/datastore/engine"
)

// Maker makes snapshots of one data directory.
type Maker struct {
	Dir     datadir.Dir
	Version string // of the clusterd whose datastore it is
	Node    string
	// Copy makes a consistent copy of the datastore.
	Copy func(ctx context.Context, path string) (engine.Content, error)
	// Now is the clock, time.Now when nil.
	Now func() time.Time
}

// LastVersion is the version of clusterd that had the datastore of a data directory last; those that left no note of it are
// called unknown.
func LastVersion(dir datadir.Dir) string {
	text, err := os.ReadFile(dir.DBVersion())
	if err != nil || len(bytes.TrimSpace(text)) == 0 {
		return "unknown"
	}
	return string(bytes.TrimSpace(text))
}

// Save makes the snapshot called name in a folder. With an error nothing has become of it.
func (m Maker) Save(ctx context.Context, to Folder, name string) (Info, error) {
	name, err := CheckName(name)
	if err != nil {
		return Info{}, err
	}
	release, err := to.claim()
	if err != nil {
		return Info{}, err
	}
	defer release()
	if err := m.save(ctx, to, name); err != nil {
		return Info{}, fmt.Errorf("save snapshot %s: %w", name, err)
	}
	return to.Describe(ctx, name), nil
}

func (m Maker) save(ctx context.Context, to Folder, name string) error {
	if _, err := os.Lstat(to.Path(name)); err == nil {
		return fmt.Errorf("%s is there already: choose another name, or delete it first", to.Path(name))
	}
	if err := m.checkRoom(to); err != nil {
		return err
	}
	if err := os.Mkdir(to.scratch(), 0o700); err != nil {
		return err
	}
	archive := filepath.Join(to.scratch(), "archive")
	meta, written, err := m.write(ctx, archive, filepath.Join(to.scratch(), "state.db"))
	if err != nil {
		return err
	}
	if err := verify(ctx, archive, meta, written, members(m.Dir)); err != nil {
		return fmt.Errorf("read it again: %w", err)
	}
	if err := os.Rename(archive, to.Path(name)); err != nil {
		return err
	}
	return atomicfile.SyncDir(string(to))
}

// checkRoom refuses what could fill the disk. For a while there are two copies: the datastore's and its archive.
func (m Maker) checkRoom(to Folder) error {
	db, err := os.Stat(m.Dir.DB())
	if err != nil {
		return fmt.Errorf("look at the datastore: %w", err)
	}
	var s unix.Statfs_t
	if err := unix.Statfs(string(to), &s); err != nil {
		return fmt.Errorf("statfs %s: %w", to, err)
	}
	const mb = 1e6
	if free, need := int64(s.Bavail)*s.Bsize, 2*db.Size(); free < need {
		return fmt.Errorf("%s has %.1f MB free and may need %.1f MB: make room there, or choose another directory with --snapshot-dir",
			to, float64(free)/mb, float64(need)/mb)
	}
	return nil
}

// write makes the archive from a copy of the datastore, which it checks and removes again, and syncs it.
func (m Maker) write(ctx context.Context, archive, db string) (Meta, map[string]digest, error) {
	now := time.Now
	if m.Now != nil {
		now = m.Now
	}
	content, err := m.Copy(ctx, db)
	if err != nil {
		return Meta{}, nil, err
	}
	defer os.Remove(db)
	meta := Meta{Format: format, Created: now().UTC().Truncate(time.Second), Version: m.Version, Node: m.Node, Revision: content.Revision, Keys: content.Keys}
	if err := check(ctx, db, meta); err != nil {
		return Meta{}, nil, err
	}
	f, err := os.OpenFile(archive, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return Meta{}, nil, err
	}
	defer f.Close()
	files := members(m.Dir)
	files[0].path = db
	written, err := pack(ctx, f, meta, files)
	if err != nil {
		return Meta{}, nil, err
	}
	return meta, written, f.Sync()
}

// check reads a whole datastore and compares it with what it should be.
func check(ctx context.Context, db string, meta Meta) error {
	content, err := engine.Inspect(ctx, db)
	if err != nil {
		return err
	}
	if content != meta.content() {
		return fmt.Errorf("its datastore is at revision %d with %d keys, not at %d with %d", content.Revision, content.Keys, meta.Revision, meta.Keys)
	}
	return nil
}

// verify reads an archive and compares it with what was written.
func verify(ctx context.Context, archive string, meta Meta, written map[string]digest, files []member) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	a, err := openArchive(f)
	if err != nil {
		return err
	}
	defer a.close()
	read := map[string]digest{}
	err = a.each(ctx, files, func(name string, content io.Reader) (err error) {
		read[name], err = hash(io.Discard, content)
		return err
	})
	if err != nil {
		return err
	}
	if !maps.Equal(read, written) || a.Meta != meta {
		return fmt.Errorf("it is not what was written")
	}
	return nil
}

// unpackAndCheck unpacks an archive below root and reads its whole datastore. Nothing that is damaged passes.
func unpackAndCheck(ctx context.Context, archive, root string, files []member) (Meta, error) {
	f, err := os.Open(archive)
	if err != nil {
		return Meta{}, err
	}
	defer f.Close()
	a, err := openArchive(f)
	if err != nil {
		return Meta{}, err
	}
	defer a.close()
	if err := a.unpack(ctx, root, files); err != nil {
		return Meta{}, err
	}
	return a.Meta, check(ctx, filepath.Join(root, files[0].name), a.Meta)
}
