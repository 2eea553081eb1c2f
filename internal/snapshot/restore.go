package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/clusterd/clusterd/internal/atomicfile"
	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/datastore/engine"
)

// rename is replaced by tests.
var rename = os.Rename

// margin is how far above every known revision those of a restored datastore begin. The replaced one may be lost, or be a
// copy from before itself, while clients have seen more. It is a week of 1500 writes a second.
const margin = 1_000_000_000

// stampFile in a restored directory ends the names of what is kept aside.
const stampFile = "aside"

// Restored is what a restore has done.
type Restored struct {
	Meta
	// Last is the revision of the restored datastore.
	Last int64
	// Aside are the files that were replaced, where they are now.
	Aside []string
	// Unread says why the replaced datastore could not be asked for its revision, if so.
	Unread error
}

// Restore replaces what snapshots hold in a data directory by what the archive holds. The caller has the data directory's
// lock and is clusterd of the given version.
func Restore(ctx context.Context, dir datadir.Dir, archive, version string, at time.Time) (Restored, error) {
	earlier, err := Finish(dir)
	if err != nil {
		return Restored{}, err
	}
	r, err := prepare(ctx, dir, archive, version, at)
	if err != nil {
		return Restored{}, errors.Join(err, os.RemoveAll(dir.Unpacked()))
	}
	if err := rename(dir.Unpacked(), dir.Restored()); err != nil {
		return Restored{}, fmt.Errorf("restore: %w", err)
	}
	if err := atomicfile.SyncDir(filepath.Dir(dir.Restored())); err != nil {
		return Restored{}, err
	}
	r.Aside, err = Finish(dir)
	r.Aside = append(earlier, r.Aside...)
	return r, err
}

// prepare puts everything in dir.Unpacked, synced, as it is to be in the data directory.
func prepare(ctx context.Context, dir datadir.Dir, archive, version string, at time.Time) (Restored, error) {
	root, files := dir.Unpacked(), members(dir)
	if err := os.MkdirAll(filepath.Dir(root), 0o700); err != nil {
		return Restored{}, fmt.Errorf("make directory: %w", err)
	}
	meta, err := unpackAndCheck(ctx, archive, root, files)
	if err != nil {
		return Restored{}, fmt.Errorf("snapshot %s cannot be restored: %w", archive, err)
	}
	r := Restored{Meta: meta}
	last := meta.Revision
	if _, err := os.Stat(dir.DB()); err == nil {
		old, err := engine.Revision(ctx, dir.DB())
		r.Unread, last = err, max(last, old)
	}
	unpacked := filepath.Join(root, files[0].name)
	content, err := rewrite(ctx, unpacked, last+margin)
	if err != nil {
		return Restored{}, fmt.Errorf("snapshot %s cannot be restored: %w", archive, err)
	}
	r.Last = content.Revision
	if err := os.WriteFile(filepath.Join(filepath.Dir(unpacked), filepath.Base(dir.DBVersion())), []byte(version+"\n"), 0o600); err != nil {
		return Restored{}, fmt.Errorf("write version: %w", err)
	}
	if err := dropSame(root, files[1:]); err != nil {
		return Restored{}, err
	}
	if err := os.WriteFile(filepath.Join(root, stampFile), []byte(at.UTC().Format(stampLayout)), 0o600); err != nil {
		return Restored{}, fmt.Errorf("write time of restore: %w", err)
	}
	return r, syncTree(root)
}

// rewrite moves all revisions of an unpacked datastore up.
func rewrite(ctx context.Context, db string, shift int64) (engine.Content, error) {
	fresh := db + ".new"
	content, err := engine.Rewrite(ctx, db, fresh, shift)
	if err != nil {
		return engine.Content{}, err
	}
	for _, end := range logs { // what the earlier layout may have had
		if err := os.Remove(db + end); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return engine.Content{}, err
		}
	}
	return content, os.Rename(fresh, db)
}

// logs are the ends of the names of files that belong to a database of SQLite.
var logs = []string{"-wal", "-shm", "-journal"}

// dropSame removes unpacked files that are in the data directory already, so that nothing is kept aside for them.
func dropSame(root string, files []member) error {
	for _, m := range files {
		unpacked := filepath.Join(root, m.name)
		data, err := os.ReadFile(unpacked)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read unpacked file: %w", err)
		}
		if there, err := os.ReadFile(m.path); err != nil || !bytes.Equal(there, data) {
			continue
		}
		if err := os.Remove(unpacked); err != nil {
			return fmt.Errorf("remove unpacked file: %w", err)
		}
	}
	return nil
}

// syncTree puts all files and names below root on disk.
func syncTree(root string) error {
	return filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("sync what was unpacked: %w", err)
		}
		return atomicfile.SyncDir(path) // which does for files too
	})
}

// Finish puts in place what a restore has prepared, and returns where that is which was there before. It goes on where an
// interrupted one has stopped and does nothing when there was none. The caller has the data directory's lock.
func Finish(dir datadir.Dir) (aside []string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("put the restored snapshot in place: %w", err)
		}
	}()
	if err := os.RemoveAll(dir.Unpacked()); err != nil {
		return nil, err
	}
	stamp, err := os.ReadFile(filepath.Join(dir.Restored(), stampFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, m := range append(members(dir), member{"server/db/version", dir.DBVersion()}) {
		moved, err := put(filepath.Join(dir.Restored(), m.name), m.path, asidePath(dir, m.path, string(stamp)), m.path == dir.DB())
		if err != nil {
			return aside, err
		}
		aside = append(aside, moved...)
	}
	if err := rename(dir.Restored(), dir.Unpacked()); err != nil { // at once, so that none without its stamp is found
		return aside, err
	}
	return aside, os.RemoveAll(dir.Unpacked())
}

// asidePath is where a file of the data directory goes that is replaced.
func asidePath(dir datadir.Dir, path, stamp string) string {
	if tls := dir.ServerTLS(); strings.HasPrefix(path, tls+"/") {
		return filepath.Join(tls+".old-"+stamp, filepath.Base(path))
	}
	return path + ".old-" + stamp
}

// put moves what is at path aside, with a database's logs, and then fresh to path. When fresh is not there, an earlier run
// has done that.
func put(fresh, path, aside string, database bool) (moved []string, err error) {
	if _, err := os.Lstat(fresh); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, d := range []string{filepath.Dir(path), filepath.Dir(aside)} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	ends := []string{""}
	if database {
		ends = append(ends, logs...)
	}
	for _, end := range ends {
		switch err := rename(path+end, aside+end); {
		case err == nil:
			moved = append(moved, aside+end)
		case !errors.Is(err, fs.ErrNotExist):
			return moved, err
		}
	}
	// The old log is away on disk before the new database can be: SQLite would take it for its own.
	for _, d := range []string{filepath.Dir(aside), filepath.Dir(path)} {
		if err := atomicfile.SyncDir(d); err != nil {
			return moved, err
		}
	}
	if err := rename(fresh, path); err != nil {
		return moved, err
	}
	return moved, atomicfile.SyncDir(filepath.Dir(path))
}
