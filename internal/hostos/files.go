package hostos

import (
	"context"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// recheckInterval is how often files are taken to have changed without a sign of it: the folder of one may not have
	// existed before, and not every file system tells.
	recheckInterval = 5 * time.Minute
	// written is how long a changed file is left alone, to be written completely.
	written = 200 * time.Millisecond
)

// FileChanges tells when one of the files may have changed, until ctx ends, when the channel is closed: soon after it did,
// and every five minutes. Files need not exist, and may be links, which may come to lead elsewhere.
func FileChanges(ctx context.Context, files []string) <-chan struct{} {
	told := make(chan struct{}, 1)
	w, err := fsnotify.NewWatcher()
	if err != nil { // out of inotify instances: the clock has to do
		w = &fsnotify.Watcher{}
	} else {
		watch(w, files) // before this returns: what changes from now on is told
	}
	go func() {
		defer close(told)
		if err == nil {
			defer w.Close()
		}
		recheck := time.NewTicker(recheckInterval)
		defer recheck.Stop()
		var settled <-chan time.Time
		for {
			select {
			case <-ctx.Done():
				return
			case <-w.Events:
				settled = time.After(written)
				continue
			case <-w.Errors: // news were lost, and an error that nobody takes holds up all further ones
				settled = time.After(written)
				continue
			case <-settled:
				settled = nil
			case <-recheck.C:
			}
			if err == nil {
				watch(w, files)
			}
			select {
			case told <- struct{}{}:
			default:
			}
		}
	}()
	return told
}

// watch watches the folders of the files and of what they link to, since such files are usually replaced, and the files
// themselves, since one that is mounted, as in containers, is in another folder for whoever writes it. What is watched
// already, or does not exist, changes nothing.
func watch(w *fsnotify.Watcher, files []string) {
	for _, f := range files {
		_ = w.Add(filepath.Dir(f))
		if target, err := filepath.EvalSymlinks(f); err == nil {
			_ = w.Add(target)
			_ = w.Add(filepath.Dir(target))
		}
	}
}
