package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/cmd/containerd/server"
	srvconfig "github.com/containerd/containerd/v2/cmd/containerd/server/config"
	"github.com/containerd/containerd/v2/core/mount"
)

// stopTimeout bounds the stop of containerd.
const stopTimeout = 4 * time.Second

// serve starts containerd and returns when CRI answers, with what stops it.
func (r *Runtime) serve(ctx context.Context, snapshotter string) (stop func() error, err error) {
	config := r.cfg.containerdConfig(snapshotter)
	if err := prepare(config); err != nil {
		return nil, err
	}
	if err := extendPath(filepath.Dir(r.cfg.Bundle.Shim)); err != nil {
		return nil, err
	}
	if err := registerPlugins(); err != nil {
		return nil, fmt.Errorf("register containerd plugins: %w", err)
	}
	logs := r.takeLogs()
	// containerd keeps this context in its loops: it ends after the plugins do.
	inner, cancel := context.WithCancel(context.WithValue(context.WithoutCancel(ctx), hostKey{}, r.host))
	srv, err := server.New(inner, config)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("make containerd: %w", err)
	}
	stop = func() error {
		defer cancel()
		logs.close()
		return stopServer(srv)
	}
	logs.open(r.cfg.Debug)
	if err := r.start(ctx, inner, srv); err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

// prepare makes the directories that containerd wants before it starts, and
// removes what a killed process left mounted to unpack images.
func prepare(config *srvconfig.Config) error {
	if err := server.CreateTopLevelDirectories(config); err != nil {
		return fmt.Errorf("make containerd directories: %w", err)
	}
	if err := mount.SetTempMountLocation(filepath.Join(config.Root, "tmpmounts")); err != nil {
		return fmt.Errorf("make directory for temporary mounts: %w", err)
	}
	if _, err := mount.CleanupTempMounts(0); err != nil {
		return fmt.Errorf("remove temporary mounts: %w", err)
	}
	return nil
}

// extendPath puts dir in front of PATH, where containerd looks for its shim.
func extendPath(dir string) error {
	if err := os.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH")); err != nil {
		return fmt.Errorf("extend PATH: %w", err)
	}
	return nil
}

// start opens the sockets and waits for CRI.
func (r *Runtime) start(ctx, inner context.Context, srv *server.Server) error {
	if err := srv.Start(inner); err != nil {
		return fmt.Errorf("start containerd: %w", err)
	}
	isReady := make(chan struct{})
	go func() {
		srv.Wait()
		close(isReady)
	}()
	select {
	case <-isReady:
		return nil
	case err := <-r.host.failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stopServer closes the plugins: the API first, the databases last.
func stopServer(srv *server.Server) error {
	stopped := make(chan struct{})
	go func() {
		srv.Stop()
		close(stopped)
	}()
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-stopped:
		return nil
	case <-timer.C:
		return fmt.Errorf("stop containerd: not done after %v", stopTimeout)
	}
}
