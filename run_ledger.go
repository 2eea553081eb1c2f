package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	clilib "github.com/urfave/cli/v2"

	"github.com/clusterd/clusterd/agent/removal"
	"github.com/clusterd/clusterd/internal/atomicfile"
	"github.com/clusterd/clusterd/internal/cli"
	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/ledger"
	"github.com/clusterd/clusterd/internal/service"
)

// lookAgain is how often a state of another process is looked at.
const lookAgain = 100 * time.Millisecond

// claim enters into the ledger what this start is going to make outside of the data directory, whose lock it needs.
func claim(dir datadir.Dir, kubeconfig string, node bool) error {
	l, err := ledger.Open(dir.Ledger())
	if err != nil {
		return err
	}
	if err := os.Remove(dir.ReadyFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the mark of an earlier process: %w", err)
	}
	if err := l.AddTree(dir.RunDir()); err != nil {
		return err
	}
	if kubeconfig != "" {
		if kubeconfig, err = filepath.Abs(kubeconfig); err != nil {
			return fmt.Errorf("locate kubeconfig: %w", err)
		}
		if err := l.AddDir(filepath.Dir(kubeconfig)); err != nil {
			return err
		}
		// It is written whatever is there, so it is ours.
		if err := l.Add(ledger.Entry{Kind: ledger.File, Name: kubeconfig}); err != nil {
			return err
		}
	}
	if !node {
		return nil
	}
	return removal.Claim(l, dir)
}

// markReady leaves a file for clusterd ready; the mark of an earlier process has another number.
func markReady(dir datadir.Dir) error {
	return atomicfile.Write(dir.ReadyFile(), 0o644, []byte(strconv.Itoa(os.Getpid())+"\n"))
}

// findDir is the data directory of the command line, or of the configuration.
func findDir(dataDir string) (datadir.Dir, error) {
	if dataDir == "" {
		dataDir = setting("data-dir")()
	}
	return datadir.New(dataDir)
}

// isReady waits for the mark of the process that has the data directory.
func isReady(c *clilib.Context, dataDir string, limit time.Duration) error {
	dir, err := findDir(dataDir)
	if err != nil {
		return err
	}
	if _, err := dir.Holder(); err != nil {
		return err // as anybody but root
	}
	ctx, release := cli.Signals(c.Context, exitNow)
	defer release()
	ready := func() bool {
		mark, err := os.ReadFile(dir.ReadyFile())
		holder, lockErr := dir.Holder()
		return err == nil && lockErr == nil && holder != 0 && strings.TrimSpace(string(mark)) == strconv.Itoa(holder)
	}
	if !await(ctx, limit, ready) {
		return fmt.Errorf("the node of the data directory %s is not Ready after %s: its log says why", dir.Root(), limit)
	}
	return nil
}

// await polls until done says so; false is that the time is over or ctx has ended.
func await(ctx context.Context, limit time.Duration, done func() bool) bool {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for end := time.Now().Add(limit); !done(); {
		if time.Now().After(end) {
			return false
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// enterIntoLedger is called by the installer before it makes a thing. A running clusterd has read the ledger at its start
// and does not write it again.
func enterIntoLedger(_ *clilib.Context, dataDir, kind, name string) error {
	dir, err := findDir(dataDir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir.Root(), 0o755); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	l, err := ledger.Open(dir.Ledger())
	if err != nil {
		return err
	}
	switch k := ledger.Kind(kind); k {
	case ledger.File, ledger.Program:
		if err := l.AddDir(filepath.Dir(name)); err != nil {
			return err
		}
		return l.Add(ledger.Entry{Kind: k, Name: name})
	case ledger.Service:
		s, err := service.Parse(name)
		if err != nil {
			return err
		}
		return l.Add(ledger.Entry{Kind: k, Name: s.String()})
	}
	return fmt.Errorf("%q is no kind that an installer makes: want %s, %s or %s", kind, ledger.File, ledger.Program, ledger.Service)
}
