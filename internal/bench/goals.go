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

// reportStoreGoals prints a line for each ratio and returns whether all goals are reached.
func reportStoreGoals(w io.Writer, all []figures, sync time.Duration) bool {
	fmt.Fprintf(w, "\n%-44s %7s  %s\n", "goals", "ratio", "wanted")
	side := func(name string) *figures {
		if i := slices.IndexFunc(all, func(f figures) bool { return f.name == name }); i >= 0 {
			return &all[i]
		}
		return nil
	}
	reached := true
	for _, g := range storeGoals {
		ours, theirs := side(g.side), side(g.against)
		if theirs == nil {
			continue
		}
		i := slices.IndexFunc(ours.phases, func(p phase) bool { return p.name == g.phase })
		ratio := ours.phases[i].perSecond / theirs.phases[i].perSecond
		if g.of == "p99" {
			ratio = float64(ours.phases[i].p99) / float64(theirs.phases[i].p99)
		}
		name := fmt.Sprintf("%s, %s, of %s's", g.phase, g.of, g.against)
		if g.side == directSide {
			name = directSide + ": " + name
		}
		reached = printGoal(w, name, ratio, g.least, g.most) && reached
	}
	direct := side(directSide)
	i := slices.IndexFunc(direct.phases, func(p phase) bool { return p.name == singleClient })
	reached = printGoal(w, directSide+": "+singleClient+", p50, of fdatasync's", float64(direct.phases[i].p50)/float64(sync), 0, syncGoal) && reached
	ours := side(grpcSide)
	if kine := side("kine"); kine != nil {
		reached = printGoal(w, "bytes a write, of kine's", ours.perWrite/kine.perWrite, 0, writtenGoal) && reached
	}
	return printGoal(w, "idle CPU, ms/s", ours.idle, 0, idleGoal) && reached
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
	fmt.Fprintf(w, "%-44s %7.2f  %-14s %s\n", name, ratio, wanted, verdict)
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
