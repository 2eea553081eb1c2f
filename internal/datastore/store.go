// Package datastore keeps the cluster's state: an etcd-compatible store in one
// SQLite file, served inside the process over an in-memory connection.
//
// What it promises:
//   - A write that was acknowledged is on disk. The database runs in WAL mode
//     with synchronous=FULL, so every commit waits for the disk, and the process
//     may be killed at any moment.
//   - An event reaches every watcher without polling: a write wakes the reader
//     of the log. The slow poll that remains is only a safety net.
//   - There is no socket, no port and no second process. Only Dial reaches it.
//
// Why kine: it speaks the subset of etcd that an API server uses, and needs no
// cluster of its own. Its command line package is not used, because it links
// every database driver there is; the SQLite driver and the etcd bridge are
// enough. Built without cgo the driver runs on modernc.org/sqlite.
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
)

// EtcdVersion is the version the store reports. API servers switch on lists
// from their cache and progress requests by it, both of which are implemented.
const EtcdVersion = "3.6.6"

const (
	// progressInterval is how often an idle watch is told the current revision.
	// Readers which need it earlier ask for it, so this only bounds how old the
	// revision of a resource nobody touches can look.
	progressInterval = time.Minute
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
}

// Store is the running datastore, a lifecycle component.
type Store struct {
	path string
	log  *slog.Logger
	pipe *pipe
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
	return &Store{path: path, log: log, pipe: newPipe()}, nil
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
	defer s.pipe.Close()
	db, err := open(ctx, s.path, s.log)
	if err != nil {
		return err
	}
	defer db.close()
	if err := db.selfTest(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("self-test of datastore %s: %w", s.path, err)
	}
	return s.serve(ctx, db.backend, ready)
}

// serve answers etcd calls from the pipe until ctx ends. Calls still running
// then are cut: they were not acknowledged, and whoever made them has stopped.
func (s *Store) serve(ctx context.Context, b server.Backend, ready func()) error {
	srv := newServer(b)
	stop := context.AfterFunc(ctx, srv.Stop)
	defer stop()
	ready()
	err := srv.Serve(s.pipe)
	if ctx.Err() != nil {
		srv.Stop()
		return nil
	}
	return fmt.Errorf("serve datastore: %w", err)
}

// newServer returns the etcd services over b, tuned for many idle connections
// inside one process.
func newServer(b server.Backend) *grpc.Server {
	srv := grpc.NewServer(
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxConcurrentStreams(math.MaxUint32),
		grpc.ReadBufferSize(readBufferBytes),
		grpc.SharedWriteBuffer(true),
		grpc.WaitForHandlers(true),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime:             time.Millisecond,
			PermitWithoutStream: true,
		}),
	)
	server.New(b, "http", progressInterval, EtcdVersion).Register(srv)
	return srv
}
