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
	phase, of, against string
	least, most        float64 // one of them
}

// storeGoals are of the phases and stores of the same names.
var storeGoals = []storeGoal{
	{"create", "rate", "kine", 8, 0},
	{"update", "rate", "kine", 8, 0},
	{"create", "p99", "kine", 0, 0.1},
	{"update", "p99", "kine", 0, 0.1},
	{"get", "rate", "kine", 5, 0},
	{"list 500", "rate", "kine", 5, 0},
	{"create", "rate", "etcd", 1.5, 0},
	{"update", "rate", "etcd", 1.5, 0},
	{"get", "rate", "etcd", 2, 0},
	{"list 500", "rate", "etcd", 2, 0},
}

// syncGoal is how many times as long as a bare fdatasync the median write of a single client may take.
const syncGoal = 1.5

// reportStoreGoals prints a line for each ratio and returns whether all goals are reached.
func reportStoreGoals(w io.Writer, names []string, results [][]phase, sync time.Duration) bool {
	fmt.Fprintf(w, "\n%-38s %7s  %s\n", "goals", "ratio", "wanted")
	reached := true
	for _, g := range storeGoals {
		other := slices.Index(names, g.against)
		if other < 0 {
			continue
		}
		i := slices.IndexFunc(results[0], func(p phase) bool { return p.name == g.phase })
		ours, theirs := results[0][i], results[other][i]
		ratio := ours.perSecond / theirs.perSecond
		if g.of == "p99" {
			ratio = float64(ours.p99) / float64(theirs.p99)
		}
		reached = printGoal(w, fmt.Sprintf("%s, %s, of %s's", g.phase, g.of, g.against), ratio, g.least, g.most) && reached
	}
	i := slices.IndexFunc(results[0], func(p phase) bool { return p.name == singleClient })
	ratio := float64(results[0][i].p50) / float64(sync)
	return printGoal(w, singleClient+", p50, of fdatasync's", ratio, 0, syncGoal) && reached
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
	fmt.Fprintf(w, "%-38s %7.2f  %-14s %s\n", name, ratio, wanted, verdict)
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
