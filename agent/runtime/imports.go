package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"

	"github.com/clusterd/clusterd/internal/atomicfile"
)

// importsFile remembers, below Root, what the archives held that were imported.
const importsFile = "imports.json"

// appearPoll is how often CRI is asked for an image that was just imported; it
// hears of it by an event, within milliseconds.
const appearPoll = 5 * time.Millisecond

// imports brings in the pause image and the archives of ImagesDir.
type imports struct {
	host   *host
	log    *slog.Logger
	dir    string
	memory memory
	done   sync.WaitGroup
}

// importPause makes the pause image available and returns what imports the rest.
func (r *Runtime) importPause(ctx context.Context, snapshotter string) (*imports, error) {
	ctx = namespaces.WithNamespace(ctx, namespace)
	if err := setSnapshotter(ctx, r.host.client, snapshotter); err != nil {
		return nil, err
	}
	i := &imports{host: r.host, log: r.log, dir: r.cfg.ImagesDir, memory: readMemory(filepath.Join(r.cfg.Root, importsFile))}
	if err := i.archive(ctx, r.cfg.Bundle.PauseImage); err != nil {
		return nil, err
	}
	return i, i.appear(ctx, DefaultPauseImage)
}

// setSnapshotter tells clients, ours among them, what to unpack images with.
func setSnapshotter(ctx context.Context, c *client.Client, snapshotter string) error {
	label := map[string]string{defaults.DefaultSnapshotterNSLabel: snapshotter}
	err := c.NamespaceService().Create(ctx, namespace, label)
	if errdefs.IsAlreadyExists(err) {
		err = c.NamespaceService().SetLabel(ctx, namespace, defaults.DefaultSnapshotterNSLabel, snapshotter)
	}
	if err != nil {
		return fmt.Errorf("set default snapshotter: %w", err)
	}
	return nil
}

// appear waits until CRI knows an image.
func (i *imports) appear(ctx context.Context, name string) error {
	ticker := time.NewTicker(appearPoll)
	defer ticker.Stop()
	for {
		if id, err := i.host.imageID(ctx, name); err != nil || id != "" {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		case err := <-i.host.failed:
			return err
		}
	}
}

// start imports the archives of the directory in the background, and lets pulls
// go on when it is done. An archive that cannot be imported is logged and left.
func (i *imports) start(ctx context.Context) {
	i.done.Go(func() {
		defer close(i.host.imported)
		ctx := namespaces.WithNamespace(ctx, namespace)
		if err := i.directory(ctx); err != nil && ctx.Err() == nil {
			i.log.Error("images not imported", "error", err)
		}
	})
}

// wait returns when start's work has ended.
func (i *imports) wait() { i.done.Wait() }

func (i *imports) directory(ctx context.Context) error {
	if i.dir == "" {
		return nil
	}
	entries, err := os.ReadDir(i.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read directory of image archives: %w", err)
	}
	var last string
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		path := filepath.Join(i.dir, e.Name())
		if err := i.archive(ctx, path); err != nil {
			if ctx.Err() != nil {
				return err
			}
			i.log.Error("image archive not imported", "file", path, "error", err)
			continue
		}
		last = i.memory.anyName(path, last)
	}
	if last == "" {
		return nil
	}
	return i.appear(ctx, last) // and with it those before
}

// archive imports one archive unless all it holds is there.
func (i *imports) archive(ctx context.Context, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("find image archive: %w", err)
	}
	if known, ok := i.memory.contents(path, info); ok && i.present(ctx, known) {
		return nil
	}
	begin := time.Now()
	imported, err := importArchive(ctx, i.host.client, path)
	if err != nil {
		return err
	}
	i.log.Debug("image archive imported", "file", path, "images", len(imported), "took", time.Since(begin))
	return i.memory.remember(path, info, imported)
}

// present reports whether the store has each image at its digest.
func (i *imports) present(ctx context.Context, contents map[string]string) bool {
	for name, digest := range contents {
		image, err := i.host.client.ImageService().Get(ctx, name)
		if err != nil || image.Target.Digest.String() != digest {
			return false
		}
	}
	return true
}

// memory is what the archives held, by path, and the file that keeps it.
type memory struct {
	file     string
	archives map[string]remembered
}

// remembered is one archive; a file with another size or time is another one.
type remembered struct {
	Size     int64             `json:"size"`
	Modified time.Time         `json:"modified"`
	Images   map[string]string `json:"images"` // name to digest
}

// readMemory starts with nothing if there is no memory or it is damaged: then
// archives are imported once more, which changes nothing.
func readMemory(file string) memory {
	m := memory{file: file}
	data, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(data, &m.archives) != nil || m.archives == nil {
		m.archives = map[string]remembered{}
	}
	return m
}

func (m memory) contents(path string, info fs.FileInfo) (images map[string]string, ok bool) {
	r, ok := m.archives[path]
	if !ok || r.Size != info.Size() || !r.Modified.Equal(info.ModTime()) {
		return nil, false
	}
	return r.Images, true
}

func (m memory) anyName(path, otherwise string) string {
	for name := range m.archives[path].Images {
		return name
	}
	return otherwise
}

func (m memory) remember(path string, info fs.FileInfo, imported []Image) error {
	r := remembered{Size: info.Size(), Modified: info.ModTime(), Images: make(map[string]string, len(imported))}
	for _, image := range imported {
		r.Images[image.Name] = image.Digest
	}
	m.archives[path] = r
	m.forget()
	data, err := json.Marshal(m.archives)
	if err != nil {
		return fmt.Errorf("encode %s: %w", m.file, err)
	}
	return atomicfile.Write(m.file, 0o600, data)
}

// forget drops archives that are gone, such as the pause image of an older payload.
func (m memory) forget() {
	for path := range m.archives {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			delete(m.archives, path)
		}
	}
}
