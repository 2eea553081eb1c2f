package deploy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

// dirWatch tells of changes in a directory and the ones in it. Also the directory itself may leave and come again, since
// the one that it is in is watched, too.
type dirWatch struct {
	root    string
	notify  *fsnotify.Watcher // nil while nothing is watched
	current bool              // nothing has changed since notify was made
	changes chan struct{}     // holds one token when something changed
	ended   sync.WaitGroup
}

// newDirWatch watches nothing before follow is called, and never anything without root.
func newDirWatch(root string) *dirWatch {
	if root != "" {
		root = filepath.Clean(root)
	}
	return &dirWatch{root: root, current: root == "", changes: make(chan struct{}, 1)}
}

// follow watches the directories that there are now, if they may be others than at the last time. Its error is about those
// that are not watched; the others are.
//
// Why all of them anew: inotify watches directories, not their names, so after one was moved or replaced the watches that
// there are may be of directories elsewhere.
func (w *dirWatch) follow() error {
	if w.current {
		return nil
	}
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch manifests: %w", err)
	}
	w.close()
	w.notify = notify
	w.ended.Go(func() { w.collect(notify) })
	if err := w.addAll(); err != nil {
		return fmt.Errorf("watch manifests: %w", err)
	}
	w.current = true
	return nil
}

// addAll watches root, the directory that it is in, which is made when missing, and every directory below root.
func (w *dirWatch) addAll() error {
	parent := filepath.Dir(w.root)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return err
	}
	errs := []error{w.add(parent)}
	_ = fs.WalkDir(os.DirFS(w.root), ".", func(name string, entry fs.DirEntry, err error) error {
		if entry != nil && entry.IsDir() && err == nil { // what cannot be read is named by the one who reads it
			errs = append(errs, w.add(filepath.Join(w.root, name)))
		}
		return nil
	})
	return errors.Join(errs...)
}

// add watches one directory, unless it has just left, which is a change of the one that it was in.
func (w *dirWatch) add(dir string) error {
	err := w.notify.Add(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// collect turns events into tokens until the watcher is closed. An error means
// that events were lost, so it counts as one.
func (w *dirWatch) collect(notify *fsnotify.Watcher) {
	for {
		select {
		case e, ok := <-notify.Events:
			if !ok {
				return
			}
			if e.Op == fsnotify.Chmod || !w.concerns(e.Name) {
				continue
			}
		case _, ok := <-notify.Errors:
			if !ok {
				return
			}
		}
		select {
		case w.changes <- struct{}{}:
		default:
		}
	}
}

// concerns tells root and what is below it from what is beside it.
func (w *dirWatch) concerns(path string) bool {
	return path == w.root || strings.HasPrefix(path, w.root+string(filepath.Separator))
}

// settle waits until nothing has changed for a moment.
func (w *dirWatch) settle(ctx context.Context) {
	w.current = false
	quiet := time.NewTimer(settle)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.changes:
			quiet.Reset(settle)
		case <-quiet.C:
			return
		}
	}
}

func (w *dirWatch) close() {
	if w.notify != nil {
		_ = w.notify.Close()
		w.ended.Wait()
	}
}
