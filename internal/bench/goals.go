package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// storeGoal is what a figure of ours, divided by the same of another store, must come to.
type storeGoal struct {
	side, phase, of, against string
	least, most              float64 // one of them
}

func (g storeGoal) String() string {
	name := fmt.Sprintf("%s, %s, of %s's", g.phase, g.of, g.against)
	if g.side == directSide {
		name = directSide + ": " + name
	}
	return name
}

// ratio is what the goal is about in a round.
func (g storeGoal) ratio(r round) float64 {
	ours, theirs := r.side(g.side).phase(g.phase), r.side(g.against).phase(g.phase)
	if g.of == "p99" {
		return float64(ours.p99) / float64(theirs.p99)
	}
	return ours.perSecond / theirs.perSecond
}

// storeGoals are of the phases and stores of the same names. Writes are compared over gRPC, with the same client for all. Reads
// are compared as an API server gets them: ours has the store in its process. Over gRPC a read takes a processor a multiple of
// what any store does for it, on both ends, so that no store could be twice as fast as another.
var storeGoals = []storeGoal{
	{grpcSide, "create", "rate", "kine", 8, 0},
	{grpcSide, "update", "rate", "kine", 8, 0},
	{grpcSide, "create", "p99", "kine", 0, 0.1},
	{grpcSide, "update", "p99", "kine", 0, 0.1},
	{directSide, "get", "rate", "kine", 5, 0},
	{directSide, "list 500", "rate", "kine", 5, 0},
	{grpcSide, "create", "rate", "etcd", 1.5, 0},
	{grpcSide, "update", "rate", "etcd", 1.5, 0},
	{directSide, "get", "rate", "etcd", 2, 0},
	{directSide, "list 500", "rate", "etcd", 2, 0},
}

const (
	// syncGoal is how many times as long as a bare fdatasync the median write of a single client may take, in the process of
	// the store: a call over gRPC takes longer than a fast disk does.
	syncGoal = 1.5
	// writtenGoal is how much of kine's bytes a write may take to the disk.
	writtenGoal = 0.5
	// idleGoal is the CPU milliseconds a second that an idle store may use: what a process's clock can tell from nothing.
	idleGoal = 1
)

// reportStoreGoals prints a line for each ratio and returns whether all goals are reached. A ratio is the median of those of
// the rounds: a machine that others share is not as fast in one as in the next.
func reportStoreGoals(w io.Writer, rounds []round) bool {
	fmt.Fprintf(w, "\n%-52s %7s  %s\n", "goals", "ratio", "wanted")
	reached := true
	goal := func(name string, least, most float64, ratio func(round) float64) {
		reached = printGoal(w, name, middle(rounds, ratio), least, most) && reached
	}
	for _, g := range storeGoals {
		if rounds[0].side(g.against) != nil {
			goal(g.String(), g.least, g.most, g.ratio)
		}
	}
	goal(directSide+": "+singleClient+", p50, of fdatasync's", 0, syncGoal, func(r round) float64 {
		direct := r.side(directSide)
		return float64(direct.phase(singleClient).p50) / float64(direct.sync)
	})
	if rounds[0].side("kine") != nil {
		goal("bytes a write, of kine's", 0, writtenGoal, func(r round) float64 { return r.side(grpcSide).perWrite / r.side("kine").perWrite })
	}
	goal("idle CPU, ms/s", 0, idleGoal, func(r round) float64 { return r.side(grpcSide).idle })
	return reached
}

func printGoal(w io.Writer, name string, ratio, least, most float64) bool {
	verdict, wanted := "reached", fmt.Sprintf("at least %.2f", least)
	if most > 0 {
		wanted = fmt.Sprintf("at most %.2f", most)
	}
	reached := ratio >= least && (most == 0 || ratio <= most)
	if !reached {
		verdict = "MISSED"
	}
	fmt.Fprintf(w, "%-52s %7.2f  %-14s %s\n", name, ratio, wanted, verdict)
	return reached
}

// syncs is how often the bare fdatasync is measured.
const syncs = 500

// measureSync is the median time that a page more at the end of a file takes to be on disk, in a folder.
func measureSync(dir string) (time.Duration, error) {
	f, err := os.Create(filepath.Join(dir, "sync"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	page := make([]byte, 4096)
	took := make([]time.Duration, syncs)
	for i := range took {
		began := time.Now()
		if _, err := f.Write(page); err != nil {
			return 0, err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return 0, fmt.Errorf("fdatasync: %w", err)
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took[syncs/2], nil
}
