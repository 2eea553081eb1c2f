package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	clilib "github.com/urfave/cli/v2"

	"github.com/clusterd/clusterd/internal/cli"
	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/datastore/engine"
	"github.com/clusterd/clusterd/internal/snapshot"
	"github.com/clusterd/clusterd/server"
)

// snapshotPlaces is what the snapshot commands work on.
type snapshotPlaces struct {
	node   string
	dir    datadir.Dir
	folder snapshot.Folder
	bucket *snapshot.Bucket // nil without one
}

func openPlaces(c *clilib.Context) (p snapshotPlaces, err error) {
	cfg, err := server.SnapshotsFromContext(c)
	if err != nil {
		return p, err
	}
	if p.dir, err = datadir.New(cfg.DataDir); err != nil {
		return p, err
	}
	p.node, p.folder = cfg.NodeName, cfg.Snapshots.Folder(p.dir)
	p.bucket, err = cfg.Snapshots.Bucket()
	return p, err
}

// all are the folder and, if there is one, the bucket.
func (p snapshotPlaces) all() []snapshot.Place {
	if p.bucket == nil {
		return []snapshot.Place{p.folder}
	}
	return []snapshot.Place{p.folder, p.bucket}
}

func saveSnapshot(c *clilib.Context, name string) ([]snapshot.Info, error) {
	p, err := openPlaces(c)
	if err != nil {
		return nil, err
	}
	ctx, release := cli.Signals(c.Context, exitNow)
	defer release()
	if name == "" {
		name = snapshot.Stamped("on-demand", p.node, time.Now())
	}
	made, err := snapshot.Ask(ctx, p.dir.SnapshotSocket(), snapshot.Order{Name: name, Folder: p.folder})
	if errors.Is(err, snapshot.ErrNoServer) {
		made, err = p.saveStopped(ctx, name)
	}
	if err != nil {
		return nil, err
	}
	if p.bucket == nil {
		return []snapshot.Info{made}, nil
	}
	sent, err := p.bucket.Upload(ctx, p.folder, name)
	if err != nil {
		return []snapshot.Info{made}, err
	}
	return []snapshot.Info{made, sent}, nil
}

// saveStopped makes a snapshot of a datastore that no server has open.
func (p snapshotPlaces) saveStopped(ctx context.Context, name string) (snapshot.Info, error) {
	if _, err := os.Stat(p.dir.DB()); errors.Is(err, fs.ErrNotExist) {
		return snapshot.Info{}, fmt.Errorf("there is no datastore in the data directory %s: give that of the server with --data-dir", p.dir.Root())
	}
	release, err := p.dir.Lock()
	if err != nil {
		return snapshot.Info{}, fmt.Errorf("the server takes no orders yet, or not any more: try again in a moment: %w", err)
	}
	defer release() //nolint:errcheck // the process ends
	if _, err := snapshot.Finish(p.dir); err != nil {
		return snapshot.Info{}, err
	}
	m := snapshot.Maker{Dir: p.dir, Version: snapshot.LastVersion(p.dir), Node: p.node,
		Copy: func(ctx context.Context, path string) (engine.Content, error) {
			return engine.CopyClosed(ctx, p.dir.DB(), path)
		}}
	return m.Save(ctx, p.folder, name)
}

func listSnapshots(c *clilib.Context) ([]snapshot.Info, error) {
	p, err := openPlaces(c)
	if err != nil {
		return nil, err
	}
	var all []snapshot.Info
	for _, place := range p.all() {
		names, err := place.Names(c.Context)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			all = append(all, place.Describe(c.Context, name))
		}
	}
	slices.SortStableFunc(all, func(a, b snapshot.Info) int { return a.Created.Compare(b.Created) })
	return all, nil
}

func deleteSnapshot(c *clilib.Context, name string) error {
	p, err := openPlaces(c)
	if err != nil {
		return err
	}
	missing := 0
	for _, place := range p.all() {
		err := place.Delete(c.Context, name)
		if errors.Is(err, snapshot.ErrNotFound) {
			missing++
		} else if err != nil {
			return err
		}
	}
	if missing == len(p.all()) {
		return snapshot.ErrNotFound
	}
	return nil
}

func restoreSnapshot(c *clilib.Context, nameOrFile string) (snapshot.Restored, error) {
	p, err := openPlaces(c)
	if err != nil {
		return snapshot.Restored{}, err
	}
	archive, err := p.find(nameOrFile)
	if err != nil {
		return snapshot.Restored{}, err
	}
	ctx, release := cli.Signals(c.Context, exitNow)
	defer release()
	unlock, err := p.dir.Lock()
	if err != nil {
		return snapshot.Restored{}, fmt.Errorf("a restore needs the server to be stopped: %w", err)
	}
	defer unlock() //nolint:errcheck // the process ends
	if archive == "" {
		name, err := snapshot.CheckName(nameOrFile)
		if err != nil {
			return snapshot.Restored{}, err
		}
		if err := p.bucket.Download(ctx, name, p.folder); err != nil {
			return snapshot.Restored{}, fmt.Errorf("fetch %s: %w", nameOrFile, err)
		}
		archive = p.folder.Path(name)
	}
	return snapshot.Restore(ctx, p.dir, archive, cli.Version(), time.Now())
}

// find is the archive of a snapshot on this machine, or empty when only the bucket can have it.
func (p snapshotPlaces) find(nameOrFile string) (string, error) {
	candidates := []string{nameOrFile}
	if name, err := snapshot.CheckName(nameOrFile); err == nil {
		candidates = []string{p.folder.Path(name), nameOrFile}
	}
	for _, path := range candidates {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	if p.bucket != nil && !strings.Contains(nameOrFile, "/") {
		return "", nil
	}
	return "", fmt.Errorf("there is neither a snapshot %q in %s nor a file of that name; clusterd snapshot list shows what is there", nameOrFile, p.folder)
}
