package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// Below Root: containerd's metadata, what its snapshotters keep, and the content of images.
const (
	metadataDir  = "io.containerd.metadata.v1.bolt"
	snapshotters = "io.containerd.snapshotter.v1.*"
	blobsDir     = "io.containerd.content.v1.content/blobs"
)

// heal removes what a power cut has damaged below Root before containerd opens it, and returns the content that is lost.
// Snapshots and the metadata refer to each other: neither is of use without the other.
func (r *Runtime) heal() (lost []digest.Digest, err error) {
	folders, err := filepath.Glob(filepath.Join(r.cfg.Root, snapshotters))
	if err != nil {
		return nil, fmt.Errorf("look for snapshotters: %w", err)
	}
	records := []string{filepath.Join(r.cfg.Root, metadataDir, "meta.db")}
	for _, f := range folders {
		records = append(records, filepath.Join(f, "metadata.db"))
	}
	for _, file := range records {
		if !damaged(file) {
			continue
		}
		r.log.Warn("containerd's records were damaged, as by a power cut, and are made again: images come from the archives, or are pulled again", "file", file)
		for _, path := range append(folders, filepath.Join(r.cfg.Root, metadataDir), filepath.Join(r.cfg.Root, importsFile)) {
			if err := os.RemoveAll(path); err != nil {
				return nil, fmt.Errorf("remove containerd's damaged records: %w", err)
			}
		}
		break
	}
	return r.removeEmptied()
}

// damaged is whether a database is there and cannot be used.
func damaged(file string) bool {
	info, err := os.Stat(file)
	if err != nil {
		return false
	}
	if info.Size() == 0 {
		return true
	}
	db, err := bolt.Open(file, 0o600, &bolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return !errors.Is(err, bolterrors.ErrTimeout)
	}
	_ = db.Close()
	return false
}

// removeEmptied removes content that a power cut has emptied.
func (r *Runtime) removeEmptied() (lost []digest.Digest, _ error) {
	root := filepath.Join(r.cfg.Root, blobsDir)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil || info.Size() > 0 {
			return err
		}
		id := digest.NewDigestFromEncoded(digest.Algorithm(filepath.Base(filepath.Dir(path))), filepath.Base(path))
		if id == digest.FromBytes(nil) {
			return nil
		}
		lost = append(lost, id)
		return os.Remove(path)
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for emptied content of images: %w", err)
	}
	if len(lost) == 0 {
		return nil, nil
	}
	r.log.Warn("content of images was empty, as after a power cut: the archives are imported again, and pulled images that cannot do without are pulled again", "blobs", len(lost))
	if err := os.Remove(filepath.Join(r.cfg.Root, importsFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("forget what was imported: %w", err)
	}
	return lost, nil
}

// forgetLost makes containerd forget content that is lost, and images that cannot be used without it.
func (r *Runtime) forgetLost(ctx context.Context, lost []digest.Digest) error {
	if len(lost) == 0 {
		return nil
	}
	ctx = namespaces.WithNamespace(ctx, namespace)
	store := r.host.client.ContentStore()
	for _, id := range lost {
		if err := store.Delete(ctx, id); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("forget lost content: %w", err)
		}
	}
	all, err := r.host.client.ImageService().List(ctx)
	if err != nil {
		return fmt.Errorf("look for images without content: %w", err)
	}
	var gone []string
	for _, i := range all {
		if whole(ctx, store, i) {
			continue
		}
		if err := r.host.client.ImageService().Delete(ctx, i.Name, images.SynchronousDelete()); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("forget the image %s: %w", i.Name, err)
		}
		gone = append(gone, i.Name)
	}
	r.log.Debug("images without content forgotten", "images", strings.Join(gone, " "))
	return nil
}

// whole is whether an image can be used, if it is unpacked: its manifest and its configuration are there.
func whole(ctx context.Context, store content.Provider, i images.Image) bool {
	config, err := i.Config(ctx, store, platforms.Default())
	if err == nil {
		_, err = content.ReadBlob(ctx, store, config)
	}
	return err == nil
}
