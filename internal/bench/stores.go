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
	"syscall"
	"time"

	"github.com/clusterd/clusterd/internal/datastore"
)

// store is a server of the etcd API in a process of its own.
type store struct {
	name, endpoint string
	command        []string
	socket         string // appears when the store answers
}

// compareStores measures clusterd's datastore, stock kine on SQLite and etcd, one after the other, each as a process that is
// reached by a unix socket, with its files in the same folder. They all sync each commit to the disk.
func compareStores(ctx context.Context, baseline string, l load) error {
	dir, err := os.MkdirTemp("/var/tmp", "clusterd-bench-store-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	path := func(name string) string { return filepath.Join(dir, name) }
	stores := []store{{"clusterd", "unix://" + path("clusterd.sock"), []string{self, "serve-store", path("clusterd.db"), path("clusterd.sock")}, path("clusterd.sock")}}
	if baseline != "" {
		program := filepath.Join(baseline, "bin", "baseline")
		stores = append(stores,
			store{"kine", "unix://" + path("kine.sock"), []string{program, "kine", "sqlite://" + path("kine.db") +
				"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=busy_timeout(30000)&_txlock=immediate",
				"unix://" + path("kine.sock"), "127.0.0.1:0"}, path("kine.sock")},
			store{"etcd", "unix://" + path("etcd.sock"), []string{program, "etcd", "--data-dir", path("etcd"), "--log-level", "error",
				"--listen-client-urls", "unix://" + path("etcd.sock"), "--advertise-client-urls", "unix://" + path("etcd.sock"),
				"--listen-peer-urls", "unix://" + path("peer.sock")}, path("etcd.sock")})
	}
	var names []string
	var results [][]phase
	for _, s := range stores {
		phases, err := s.measure(ctx, l)
		if err != nil {
			return fmt.Errorf("measure %s: %w", s.name, err)
		}
		names, results = append(names, s.name), append(results, phases)
	}
	fmt.Printf("%d clients, %d operations a phase, values of %d bytes, %d watches\n", l.clients, l.operations, l.size, l.watches)
	reportStores(os.Stdout, names, results)
	sync, err := measureSync(dir)
	if err != nil {
		return err
	}
	if !reportStoreGoals(os.Stdout, names, results, sync) {
		return errMissed
	}
	return nil
}

// measure runs the store for the time of a load.
func (s store) measure(ctx context.Context, l load) ([]phase, error) {
	cmd := exec.CommandContext(ctx, s.command[0], s.command[1:]...)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}()
	for range 300 {
		if _, err := os.Stat(s.socket); err == nil {
			return l.measureStore(ctx, s.endpoint)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil, errors.New("it does not answer")
}

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
	return s.RunOn(ctx, listener, func() { _ = os.Rename(args[1]+".new", args[1]) })
}
