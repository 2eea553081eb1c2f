package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/clusterd/clusterd/internal/atomicfile"
	"github.com/clusterd/clusterd/internal/datastore"
	"github.com/clusterd/clusterd/internal/datastore/engine"
	"github.com/clusterd/clusterd/internal/hostos"
	"github.com/clusterd/clusterd/internal/lifecycle"
	"github.com/clusterd/clusterd/internal/snapshot"
)

// snapshots saves them: on a schedule, when asked by the socket, and before a new version touches the datastore. That one of
// these does not work is a warning; nothing else depends on it.
type snapshots struct {
	cfg    SnapshotConfig
	d      Deps
	node   string
	folder snapshot.Folder
	store  copier // nil: none are saved
	log    *slog.Logger

	mu      sync.Mutex // one at a time
	unsaved bool       // the snapshot before the upgrade has failed
	upgrade string     // its name, until it is copied to S3
}

// copier is the datastore while it is open.
type copier interface {
	Copy(ctx context.Context, path string) (engine.Content, error)
}

// newSnapshots makes the component. Only of a datastore in the data directory snapshots are saved: others have tools of their
// own for that.
func newSnapshots(cfg Config, d Deps, store store) *snapshots {
	s := &snapshots{cfg: cfg.Snapshots, d: d, node: cfg.NodeName, folder: cfg.Snapshots.Folder(d.Dir), log: d.Log}
	if file, ok := store.(*datastore.Store); ok && ownFile(cfg, d) {
		s.store = file
	}
	return s
}

// errElsewhere is the answer to orders for snapshots that cannot be saved.
var errElsewhere = errors.New("the datastore is not the one in the data directory (--datastore-endpoint): save it with its own tools")

// Name is the component's name.
func (s *snapshots) Name() string { return "snapshots" }

// Run is ready at once.
func (s *snapshots) Run(ctx context.Context, ready func()) error {
	ready()
	s.folder.Clean()
	var serving sync.WaitGroup
	defer serving.Wait()
	serving.Go(func() {
		if err := snapshot.Serve(ctx, s.d.Dir.SnapshotSocket(), s.order); err != nil {
			s.log.Warn("snapshots can be saved by hand only while the server is stopped; start it again to change that", "error", err)
		}
	})
	if s.store == nil {
		<-ctx.Done()
		return nil
	}
	if s.upgrade != "" {
		s.keep(ctx, upgradeName, s.upgrade)
	}
	if s.cfg.Schedule == nil {
		<-ctx.Done()
		return nil
	}
	clock, err := hostos.ClockChanges(ctx)
	if err != nil {
		s.log.Debug("snapshots may be late after the clock was set", "error", err)
	}
	snapshot.Follow(ctx, s.cfg.Schedule, clock, s.scheduled)
	return nil
}

// scheduled saves a snapshot with the time in its name.
func (s *snapshots) scheduled(ctx context.Context) {
	name := snapshot.Stamped(s.cfg.Name, s.node, time.Now())
	if _, err := s.save(ctx, s.maker(s.d.Version, s.store.Copy), s.folder, name); err != nil {
		s.warn(ctx, "no snapshot was saved as scheduled: put right what is wrong, then run clusterd snapshot save", err)
		return
	}
	s.keep(ctx, s.cfg.Name, name)
}

// order does what comes by the socket.
func (s *snapshots) order(ctx context.Context, o snapshot.Order) (snapshot.Info, error) {
	if s.store == nil {
		return snapshot.Info{}, errElsewhere
	}
	return s.save(ctx, s.maker(s.d.Version, s.store.Copy), o.Folder, o.Name)
}

func (s *snapshots) maker(version string, copier func(context.Context, string) (engine.Content, error)) snapshot.Maker {
	return snapshot.Maker{Dir: s.d.Dir, Version: version, Node: s.node, Copy: copier}
}

func (s *snapshots) save(ctx context.Context, m snapshot.Maker, to snapshot.Folder, name string) (snapshot.Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	began := time.Now()
	made, err := m.Save(ctx, to, name)
	if err != nil {
		return made, err
	}
	const mb = 1e6
	s.log.Info("snapshot saved", "file", made.Location, "size", fmt.Sprintf("%.1fMB", float64(made.Size)/mb),
		"revision", made.Revision, "keys", made.Keys, "took", time.Since(began).Round(time.Millisecond))
	return made, nil
}

// remoteLimit is how long a copy to S3 may take: one that hangs must not be the last.
const remoteLimit = time.Hour

// keep copies a snapshot to S3, if there is one, and removes old ones of its base in each place.
func (s *snapshots) keep(ctx context.Context, base, name string) {
	ctx, cancel := context.WithTimeout(ctx, remoteLimit)
	defer cancel()
	places := []snapshot.Place{s.folder}
	bucket, err := s.cfg.Bucket()
	if err == nil && bucket != nil {
		if _, err = bucket.Upload(ctx, s.folder, name); err == nil {
			places = append(places, bucket)
		}
	}
	if err != nil {
		s.warn(ctx, "a snapshot is only on this machine: look at the --snapshot-s3 options and the bucket", err)
	}
	if s.cfg.Retention == 0 {
		return
	}
	for _, p := range places {
		if _, err := snapshot.Prune(ctx, p, base, s.node, s.cfg.Retention); err != nil {
			s.warn(ctx, "old snapshots are kept: remove them with clusterd snapshot delete", err)
		}
	}
}

// warn logs err unless it is only that the server stops.
func (s *snapshots) warn(ctx context.Context, message string, err error) {
	if !errors.Is(ctx.Err(), context.Canceled) {
		s.log.Warn(message, "error", err)
	}
}

// around wraps the datastore's component: before it is opened for the first time by this version, there is a snapshot of what
// an earlier one has left, and once it is open it is noted as this version's.
func (s *snapshots) around(store lifecycle.Component) lifecycle.Component {
	if s.store == nil {
		return store
	}
	return lifecycle.Func(store.Name(), func(ctx context.Context, ready func()) error {
		s.beforeUpgrade(ctx)
		return store.Run(ctx, func() {
			s.note()
			ready()
		})
	})
}

func (s *snapshots) beforeUpgrade(ctx context.Context) {
	before := snapshot.LastVersion(s.d.Dir)
	if _, err := os.Stat(s.d.Dir.DB()); err != nil || before == s.d.Version {
		return // there is nothing yet, or what is wrong with it is for the store to say
	}
	copyClosed := func(ctx context.Context, path string) (engine.Content, error) {
		return engine.CopyClosed(ctx, s.d.Dir.DB(), path)
	}
	name := snapshot.Stamped(upgradeName, s.node, time.Now())
	if _, err := s.save(ctx, s.maker(before, copyClosed), s.folder, name); err != nil {
		s.unsaved = true
		s.warn(ctx, "no snapshot was saved before the first start of this version: put right what is wrong, then run clusterd snapshot save", err)
		return
	}
	s.upgrade = name
}

// note writes whose the datastore is. When there is no snapshot from before, the next start tries again.
func (s *snapshots) note() {
	if s.unsaved || snapshot.LastVersion(s.d.Dir) == s.d.Version {
		return
	}
	if err := atomicfile.WriteDurable(s.d.Dir.DBVersion(), 0o600, []byte(s.d.Version+"\n")); err != nil {
		s.log.Warn("the next start will save a snapshot once more, as before an upgrade", "error", err)
	}
}
