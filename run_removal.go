package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	clilib "github.com/urfave/cli/v2"

	"github.com/clusterd/clusterd/agent/removal"
	"github.com/clusterd/clusterd/internal/cli"
	"github.com/clusterd/clusterd/internal/ledger"
	"github.com/clusterd/clusterd/internal/service"
)

// processEnd is for a clusterd that was told to stop: more than it gives itself.
const processEnd = stopDeadline + 10*time.Second

// openMachine is the machine with the ledger of the data directory, which must be one of clusterd's.
func openMachine(dataDir string) (removal.Machine, error) {
	if os.Geteuid() != 0 {
		return removal.Machine{}, errors.New("this needs root")
	}
	dir, err := findDir(dataDir)
	if err != nil {
		return removal.Machine{}, err
	}
	if !ledger.Exists(dir.Ledger()) {
		return removal.Machine{}, fmt.Errorf("there is no clusterd in %s: give its data directory with --data-dir (there is no %s)", dir.Root(), dir.Ledger())
	}
	l, err := ledger.Open(dir.Ledger())
	return removal.Machine{Dir: dir, Ledger: l}, err
}

// stopProcess stops the services and the process that has the data directory, and takes its lock.
func stopProcess(ctx context.Context, m removal.Machine, out io.Writer) (release func() error, err error) {
	for _, text := range m.Ledger.Names(ledger.Service) {
		s, err := service.Parse(text)
		if err != nil {
			return nil, err
		}
		if err := s.Stop(ctx); err != nil {
			return nil, fmt.Errorf("stop the service: %w", err)
		}
	}
	pid, err := m.Dir.Holder()
	if err != nil {
		return nil, err
	}
	if pid != 0 {
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
			return nil, fmt.Errorf("stop process %d: %w", pid, err)
		}
		fmt.Fprintf(out, "told process %d to stop\n", pid)
	}
	if !await(ctx, processEnd, func() bool { release, err = m.Dir.Lock(); return err == nil }) {
		return nil, fmt.Errorf("clusterd does not stop: %w", err)
	}
	return release, nil
}

// stopPods does what a reboot would.
func stopPods(ctx context.Context, m removal.Machine, grace time.Duration, out io.Writer) error {
	processes, err := m.StopPods(ctx, grace)
	if err != nil {
		return err
	}
	mounts, err := m.Mounts()
	if err != nil {
		return err
	}
	if err := errors.Join(m.Network(), m.Cgroups(ctx)); err != nil {
		return err
	}
	fmt.Fprintf(out, "stopped the pods: %d processes, %d mounts\n", processes, mounts)
	return m.RunFiles()
}

func stopClusterd(c *clilib.Context, dataDir string, pods bool, grace time.Duration) error {
	m, err := openMachine(dataDir)
	if err != nil {
		return err
	}
	ctx, end := cli.Signals(c.Context, exitNow)
	defer end()
	release, err := stopProcess(ctx, m, c.App.Writer)
	if err != nil {
		return err
	}
	defer release() //nolint:errcheck // the process ends
	if !pods {
		return nil
	}
	return stopPods(ctx, m, grace, c.App.Writer)
}

// uninstall can be interrupted and done again: the ledger goes last.
func uninstall(c *clilib.Context, dataDir string, grace time.Duration) error {
	m, err := openMachine(dataDir)
	if err != nil {
		return err
	}
	ctx, end := cli.Signals(c.Context, exitNow)
	defer end()
	release, err := stopProcess(ctx, m, c.App.Writer)
	if err != nil {
		return err
	}
	defer release() //nolint:errcheck // the process ends
	if err := stopPods(ctx, m, grace, c.App.Writer); err != nil {
		return err
	}
	services := m.Ledger.Names(ledger.Service)
	if err := forService(ctx, services, service.Service.Disable); err != nil {
		return err
	}
	if err := m.Files(); err != nil {
		return err
	}
	if err := forService(ctx, services, service.Service.Forget); err != nil {
		return err
	}
	if err := errors.Join(m.Programs(), m.Data()); err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "removed clusterd with its data in %s\n", m.Dir.Root())
	return nil
}

func forService(ctx context.Context, services []string, act func(service.Service, context.Context) error) error {
	for _, text := range services {
		s, err := service.Parse(text)
		if err != nil {
			return err
		}
		if err := act(s, ctx); err != nil {
			return err
		}
	}
	return nil
}
