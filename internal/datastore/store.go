// Package datastore keeps the cluster's state: an etcd-compatible store in one
// SQLite file, served inside the process over an in-memory connection.
//
// What it promises:
//   - A write that was acknowledged is on disk. The database runs in WAL mode
//     with synchronous=FULL, so every commit waits for the disk, and the process
//     may be killed at any moment.
//   - An event reaches every watcher without polling, from memory.
//   - There is no socket, no port and no second process. Only Dial reaches it.
//
// The store itself is package engine. Here it is served in etcd's terms, by way of
// kine's bridge, which speaks the subset of etcd that an API server uses.
package datastore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"path/filepath"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/clusterd/clusterd/internal/datastore/engine"
)

// EtcdVersion is the version the store reports. API servers switch on lists
// from their cache and progress requests by it, both of which are implemented.
const EtcdVersion = "3.6.6"

const (
	// defaultProgress only bounds how old the revision of a resource nobody
	// touches can look: readers which need it earlier ask for it.
	defaultProgress = time.Minute
	// maxRequestBytes bounds one request. It is well above the 3 MiB an API
	// server accepts, which refuses too large objects with a better message.
	maxRequestBytes = 16 << 20
	// readBufferBytes is kept small because there is one connection a resource.
	readBufferBytes = 4 << 10
)

// Config says where the state is kept.
type Config struct {
	// Path is the database file, required. It and its folder are made when missing.
	Path string
	// Progress is how often an idle watch is told the current revision, a minute when 0.
	Progress time.Duration
}

// Store is the running datastore, a lifecycle component.
type Store struct {
	clients
	path     string
	progress time.Duration
	log      *slog.Logger
	pipe     *pipe
}

// New checks c and returns a store that has not touched the disk yet.
func New(c Config, log *slog.Logger) (*Store, error) {
	if c.Path == "" {
		return nil, errors.New("datastore: no database path")
	}
	path, err := filepath.Abs(c.Path)
	if err != nil {
		return nil, fmt.Errorf("locate datastore %s: %w", c.Path, err)
	}
	if c.Progress == 0 {
		c.Progress = defaultProgress
	}
	return &Store{path: path, progress: c.Progress, log: log, pipe: newPipe(), clients: clients{watches: newWatches()}}, nil
}

// Name is the component's name in logs and errors.
func (s *Store) Name() string { return "datastore" }

// Dial connects to the store. It waits until the store serves, and fails with
// net.ErrClosed once it has stopped. The signature fits grpc.WithContextDialer
// after dropping the address.
func (s *Store) Dial(ctx context.Context) (net.Conn, error) {
	return s.pipe.dial(ctx)
}

// Run opens the database, calls ready when a write has made it to disk and to a
// watcher, and serves until ctx ends. A Store runs once.
func (s *Store) Run(ctx context.Context, ready func()) error {
	return s.RunOn(ctx, s.pipe, ready)
}

// RunOn is Run on another listener, for measuring the store as a process of its own.
func (s *Store) RunOn(ctx context.Context, l net.Listener, ready func(), options ...grpc.ServerOption) error {
	defer l.Close()
	db, err := engine.Open(ctx, engine.Config{Path: s.path, Log: s.log})
	if err != nil {
		return err
	}
	defer db.Close()
	s.open(local{db})
	defer s.open(nil)
	if err := touchHealth(ctx, db); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("self-test of datastore %s: %w", s.path, err)
	}
	if err := s.describe(db); err != nil {
		return err
	}
	return s.serve(ctx, db, l, ready, options)
}

// describe logs what was found, and how long it took to write a revision.
func (s *Store) describe(db *engine.Engine) error {
	stats, err := db.Stats()
	if err != nil {
		return err
	}
	const mb = 1e6
	s.log.Info("datastore", "file", s.path, "size", fmt.Sprintf("%.1fMB", float64(stats.FileBytes)/mb),
		"live", fmt.Sprintf("%.1fMB", float64(stats.FileBytes-stats.FreeBytes)/mb), "keys", stats.Keys, "revision", stats.Current,
		"lag", stats.Ripe, "commit", stats.SlowestCommit.Round(10*time.Microsecond))
	return nil
}

// Stats is the state of the open store; the error is net.ErrClosed when it is not.
func (s *Store) Stats() (engine.Stats, error) {
	db, err := s.opened()
	if err != nil {
		return engine.Stats{}, err
	}
	return db.(local).Stats()
}

// Copy writes the open store as it is now to a new database at path, while writes go on; the error is net.ErrClosed when it is
// not open. See engine.Copy.
func (s *Store) Copy(ctx context.Context, path string) (engine.Content, error) {
	db, err := s.opened()
	if err != nil {
		return engine.Content{}, err
	}
	return db.(local).Copy(ctx, path)
}

// touchHealth writes the health key again: the disk takes writes.
func touchHealth(ctx context.Context, b server.Backend) error {
	_, kv, err := b.Get(ctx, server.HealthKey, 0, false)
	if err != nil {
		return fmt.Errorf("read health key: %w", err)
	}
	if kv == nil {
		_, err = b.Create(ctx, server.HealthKey, []byte(server.HealthVal), 0)
	} else {
		_, _, _, err = b.Update(ctx, server.HealthKey, []byte(server.HealthVal), kv.ModRevision, 0)
	}
	if err != nil {
		return fmt.Errorf("write health key: %w", err)
	}
	return nil
}

// serve answers etcd calls until ctx ends or nothing can be written
// any more. Calls still running then are cut: they were not acknowledged, and
// whoever made them has stopped.
func (s *Store) serve(ctx context.Context, db *engine.Engine, l net.Listener, ready func(), options []grpc.ServerOption) error {
	srv := newServer(db, s.progress, options)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	reporting, stop := context.WithCancel(ctx)
	defer stop()
	go s.watches.report(reporting, s.progress)
	ready()
	var err error
	select {
	case <-ctx.Done():
	case err = <-db.Failed():
	case err = <-served:
		served <- err
		err = fmt.Errorf("serve datastore: %w", err)
	}
	srv.Stop()
	<-served
	return err
}

// newServer returns the etcd services over b, tuned for many idle connections
// inside one process.
func newServer(b server.Backend, progress time.Duration, more []grpc.ServerOption) *grpc.Server {
	srv := grpc.NewServer(append([]grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxConcurrentStreams(math.MaxUint32),
		grpc.ReadBufferSize(readBufferBytes),
		grpc.SharedWriteBuffer(true),
		grpc.WaitForHandlers(true),
		grpc.StreamInterceptor(withWatches),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime:             time.Millisecond,
			PermitWithoutStream: true,
		}),
	}, more...)...)
	server.New(b, "http", progress, EtcdVersion).Register(srv)
	return srv
}
