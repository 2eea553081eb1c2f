package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/clusterd/clusterd/internal/datastore"
)

// grpcSide is our store as a process of its own, reached as the others are. directSide is our store in the process of its
// clients, as the API server has it.
const (
	grpcSide   = "clusterd"
	directSide = "in process"
)

// store is a server of the etcd API in a process of its own.
type store struct {
	name, endpoint string
	command        []string
	socket         string // appears when the store answers
}

// compareStores measures clusterd's datastore, stock kine on SQLite and etcd, one after the other, each as a process that is
// reached by a unix socket, and clusterd's once more in this process, all with their files in the same folder. They all sync
// each commit to the disk.
func compareStores(ctx context.Context, baseline string, l load) error {
	base, err := os.MkdirTemp("/var/tmp", "clusterd-bench-store-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(base)
	rounds := make([]round, l.rounds)
	for n := range rounds {
		dir := filepath.Join(base, strconv.Itoa(n))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		stores, err := storesIn(dir, baseline)
		if err != nil {
			return err
		}
		for _, s := range stores {
			fmt.Fprintf(os.Stderr, "bench: round %d of %d: %s\n", n+1, l.rounds, s.name)
			f, err := s.measure(ctx, l)
			if err != nil {
				return fmt.Errorf("measure %s: %w", s.name, err)
			}
			rounds[n] = append(rounds[n], f)
		}
	}
	fmt.Printf("%d clients, %d operations a phase, values of %d bytes, %d watches; medians of %d rounds\n",
		l.clients, l.operations, l.size, l.watches, l.rounds)
	reportStores(os.Stdout, medians(rounds))
	if !reportStoreGoals(os.Stdout, rounds) {
		return errMissed
	}
	return nil
}

// storesIn is what there is to measure, with files in dir.
func storesIn(dir, baseline string) ([]store, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	path := func(name string) string { return filepath.Join(dir, name) }
	stores := []store{
		{grpcSide, "unix://" + path("clusterd.sock"), []string{self, "serve-store", path("clusterd.db"), path("clusterd.sock")}, path("clusterd.sock")},
		{name: directSide, endpoint: path("direct.db")},
	}
	if baseline == "" {
		return stores, nil
	}
	program := filepath.Join(baseline, "bin", "baseline")
	return append(stores,
		store{"kine", "unix://" + path("kine.sock"), []string{program, "kine", "sqlite://" + path("kine.db") +
			"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=busy_timeout(30000)&_txlock=immediate",
			"unix://" + path("kine.sock"), "127.0.0.1:0"}, path("kine.sock")},
		store{"etcd", "unix://" + path("etcd.sock"), []string{program, "etcd", "--data-dir", path("etcd"), "--log-level", "error",
			"--listen-client-urls", "unix://" + path("etcd.sock"), "--advertise-client-urls", "unix://" + path("etcd.sock"),
			"--listen-peer-urls", "unix://" + path("peer.sock")}, path("etcd.sock")}), nil
}

// measure runs the store for the time of a load.
func (s store) measure(ctx context.Context, l load) (figures, error) {
	if s.name == directSide {
		return s.measureDirect(ctx, l)
	}
	cmd := exec.CommandContext(ctx, s.command[0], s.command[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Start(); err != nil {
		return figures{}, err
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}()
	for range 300 {
		if _, err := os.Stat(s.socket); err == nil {
			clients, done, err := connect(s.endpoint)
			if err != nil {
				return figures{}, err
			}
			defer done()
			return l.measureStore(ctx, s.name, clients, cmd.Process.Pid)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return figures{}, errors.New("it does not answer")
}

// measureDirect runs our store in this process.
func (s store) measureDirect(ctx context.Context, l load) (figures, error) {
	db, err := datastore.New(datastore.Config{Path: s.endpoint}, slog.New(slog.DiscardHandler))
	if err != nil {
		return figures{}, err
	}
	running, stop := context.WithCancel(ctx)
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- db.Run(running, func() { close(ready) }) }()
	defer func() {
		stop()
		<-ended
	}()
	select {
	case <-ready:
	case err := <-ended:
		ended <- err
		return figures{}, err
	}
	c, err := db.Client()
	if err != nil {
		return figures{}, err
	}
	sync, err := measureSync(filepath.Dir(s.endpoint))
	if err != nil {
		return figures{}, err
	}
	f, err := l.measureStore(ctx, s.name, []*clientv3.Client{c.Client}, os.Getpid())
	f.sync = sync
	return f, err
}

// streamWorkers is how many goroutines a server with many clients keeps for their calls, instead of making one for each.
const streamWorkers = 32

// serveStore offers clusterd's datastore on a unix socket, which the program itself never does.
func serveStore(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return errUsage
	}
	s, err := datastore.New(datastore.Config{Path: args[0]}, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return err
	}
	listener, err := net.Listen("unix", args[1]+".new")
	if err != nil {
		return err
	}
	ready := func() { _ = os.Rename(args[1]+".new", args[1]) }
	return s.RunOn(ctx, listener, ready, grpc.NumStreamWorkers(streamWorkers))
}
