package deploy

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

// dirWatch tells of changes in a directory and the ones in it.
type dirWatch struct {
	root    string
	notify  *fsnotify.Watcher
	changes chan struct{} // holds one token when something changed
	ended   sync.WaitGroup
}

// watchDir watches root, which it makes when missing. Without root nothing
// ever changes.
func watchDir(root string) (*dirWatch, error) {
	w := &dirWatch{root: root, changes: make(chan struct{}, 1)}
	if root == "" {
		return w, nil
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, err
	}
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	w.notify = notify
	if err := w.addAll(); err != nil {
		notify.Close()
		return nil, err
	}
	w.ended.Go(w.collect)
	return w, nil
}

// addAll watches every directory below root; those watched already stay so.
func (w *dirWatch) addAll() error {
	return filepath.WalkDir(w.root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		return w.notify.Add(path)
	})
}

// collect turns events into tokens until the watcher is closed. An error means
// that events were lost, so it counts as one.
func (w *dirWatch) collect() {
	for {
		select {
		case e, ok := <-w.notify.Events:
			if !ok {
				return
			}
			if e.Op == fsnotify.Chmod {
				continue
			}
		case _, ok := <-w.notify.Errors:
			if !ok {
				return
			}
		}
		w.touch()
	}
}

func (w *dirWatch) touch() {
	select {
	case w.changes <- struct{}{}:
	default:
	}
}

// settle waits until nothing has changed for a moment, and watches directories
// that are new. One that left meanwhile gives another change.
func (w *dirWatch) settle(ctx context.Context) {
	quiet := time.NewTimer(settle)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.changes:
			quiet.Reset(settle)
		case <-quiet.C:
			_ = w.addAll()
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
