// Command bench measures clusterd from outside, beside a yardstick, on the machine it runs on. Call it by scripts/bench,
// which builds what it needs.
//
// `bench cluster` runs clusterd and the baseline (scripts/baseline: the same Kubernetes as separate processes), each in a
// lab node of its own and one after the other, prints their figures side by side with the ratios, and ends with the goals
// and the exit status 1 if one is missed.
//
// `bench agent` does the same with a node alone, both sides at the same time and joined to one server of clusterd.
//
// `bench store` measures the datastore alone beside stock kine and etcd, `bench compaction` how it catches up with a million
// revisions while writes go on.
//
// Why ratios: a machine's speed, and what else it does at the time, change every figure of both sides alike.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/clusterd/clusterd/internal/testkit/lab"
)

// errMissed says that the figures are there but not good enough.
var errMissed = errors.New("a goal is missed")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if errors.Is(err, flag.ErrHelp) || errors.Is(err, errUsage) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("usage: bench cluster|agent|store|compaction [flags]")

func run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case "cluster":
			return clusterCommand(ctx, args[1:])
		case "agent":
			return agentCommand(ctx, args[1:])
		case "store":
			return storeCommand(ctx, args[1:])
		case "compaction":
			return compactionCommand(ctx, args[1:])
		case "serve-store":
			return serveStore(ctx, args[1:])
		}
	}
	fmt.Fprintln(os.Stderr, errUsage)
	return errUsage
}

func clusterCommand(ctx context.Context, args []string) error {
	var p plan
	flags := flag.NewFlagSet("bench cluster", flag.ContinueOnError)
	flags.StringVar(&p.clusterd, "clusterd", "bin/clusterd", "the executable to measure; empty for none")
	flags.StringVar(&p.baseline, "baseline", "", "the directory made by scripts/baseline/build; empty for none")
	flags.StringVar(&p.pause, "pause", "bin/parts/pause.tar", "the archive of the pause image, as in clusterd's payload, for the baseline")
	flags.IntVar(&p.starts, "starts", 3, "starts from an empty data directory on each side; their median counts")
	flags.IntVar(&p.pods, "pods", 100, "pods of the larger load")
	flags.DurationVar(&p.settle, "settle", time.Minute, "time to come to rest before a footprint is taken")
	flags.DurationVar(&p.idle, "idle", 2*time.Minute, "time over which a footprint is taken")
	if err := flags.Parse(args); err != nil {
		return err
	}
	return p.run(ctx)
}

// run measures both sides and prints the report.
func (p plan) run(ctx context.Context) error {
	machines, err := lab.New("/var/tmp/clusterd-bench")
	if err != nil {
		return err
	}
	defer func() { _ = machines.Clean(context.WithoutCancel(ctx)) }()
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err
	}
	fmt.Printf("%s; load average before: %.14s\n", time.Now().UTC().Format(time.DateOnly), load)
	var ours, theirs *result
	if p.clusterd != "" {
		if ours, err = p.measureClusterd(ctx, machines); err != nil {
			return fmt.Errorf("measure clusterd: %w", err)
		}
	}
	if p.baseline != "" {
		if theirs, err = p.measureBaseline(ctx, machines); err != nil {
			return fmt.Errorf("measure the baseline: %w", err)
		}
	}
	if !report(os.Stdout, p.pods, ours, theirs) {
		return errMissed
	}
	return nil
}
