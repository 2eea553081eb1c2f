package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
)

// row is one figure of both sides.
type row struct {
	name string
	get  func(*result) float64
	// goal is the highest ratio allowed; 0 for none.
	goal float64
}

const mib = 1024 // KiB

// rows are all figures. CPU counts with the shims, which containerd keeps busy; memory without, since they are the same
// program on both sides and one a pod.
func rows(pods int) []row {
	of := func(what string) string { return fmt.Sprintf("%d pods: %s", pods, what) }
	all := []row{
		{"first start: API ready, s", func(r *result) float64 { return r.first.api }, 0},
		{"first start: node Ready, s", func(r *result) float64 { return r.first.node }, 1},
		{"first start: first pod Running, s", func(r *result) float64 { return r.first.pod }, 0},
		{"second start: API ready, s", func(r *result) float64 { return r.second.api }, 0},
		{"second start: node Ready, s", func(r *result) float64 { return r.second.node }, 1},
		{"second start: new pod Running, s", func(r *result) float64 { return r.second.pod }, 0},
	}
	all = append(all, stateRows("2 pods: ", func(r *result) *state { return &r.few }, 0.5)...)
	all = append(all, row{of("all Ready, s"), func(r *result) float64 { return r.wave }, 0.8})
	return append(all, stateRows(of(""), func(r *result) *state { return &r.many }, 0.3)...)
}

func stateRows(prefix string, get func(*result) *state, cpu float64) []row {
	return []row{
		{prefix + "anonymous memory, MiB", func(r *result) float64 { return float64(get(r).others.anon) / mib }, 0.75},
		{prefix + "PSS, MiB", func(r *result) float64 { return float64(get(r).others.pss) / mib }, 0},
		{prefix + "PSS of the shims, MiB", func(r *result) float64 { return float64(get(r).shims.pss) / mib }, 0},
		{prefix + "CPU, s/min", func(r *result) float64 { return get(r).others.cpu + get(r).shims.cpu }, cpu},
		{prefix + "CPU without shims, s/min", func(r *result) float64 { return get(r).others.cpu }, 0},
		{prefix + "written, KiB/min", func(r *result) float64 { return float64(get(r).others.written) / 1024 }, 0},
		{prefix + "goroutines", func(r *result) float64 { return float64(get(r).goroutines) }, 0},
		{prefix + "threads", func(r *result) float64 { return float64(get(r).others.threads) }, 0},
	}
}

// report prints the figures and whether the goals are reached. Either side may be nil; then there is nothing to reach.
func report(w io.Writer, pods int, ours, theirs *result) bool {
	sides := []struct {
		name string
		r    *result
	}{{"clusterd", ours}, {"baseline", theirs}}
	for _, s := range sides {
		if s.r != nil {
			printProcesses(w, s.name+", 2 pods", s.r.few.footprint)
			printProcesses(w, fmt.Sprintf("%s, %d pods", s.name, pods), s.r.many.footprint)
		}
	}
	return compareSides(w, rows(pods), ours, theirs)
}

// compareSides prints the rows of both sides and whether the goals are reached.
func compareSides(w io.Writer, rows []row, ours, theirs *result) bool {
	fmt.Fprintf(w, "\n%-38s %10s %10s %7s\n", "", "clusterd", "baseline", "ratio")
	for _, r := range rows {
		fmt.Fprintf(w, "%-38s", r.name)
		for _, side := range []*result{ours, theirs} {
			if side == nil {
				fmt.Fprintf(w, " %10s", "-")
				continue
			}
			fmt.Fprintf(w, " %10.2f", r.get(side))
		}
		if ours != nil && theirs != nil {
			fmt.Fprintf(w, " %7.2f", r.ratio(ours, theirs))
		}
		fmt.Fprintln(w)
	}
	return ours == nil || theirs == nil || printGoals(w, rows, ours, theirs)
}

// ratio is clusterd's figure divided by the baseline's; 0 when that has none.
func (r row) ratio(ours, theirs *result) float64 {
	if r.get(theirs) == 0 {
		return 0
	}
	return r.get(ours) / r.get(theirs)
}

func printGoals(w io.Writer, rows []row, ours, theirs *result) bool {
	reached := true
	fmt.Fprintf(w, "\n%-38s %7s %8s\n", "goals", "ratio", "at most")
	for _, r := range rows {
		if r.goal == 0 {
			continue
		}
		verdict := "reached"
		if r.ratio(ours, theirs) > r.goal {
			verdict, reached = "MISSED", false
		}
		fmt.Fprintf(w, "%-38s %7.2f %8.2f  %s\n", r.name, r.ratio(ours, theirs), r.goal, verdict)
	}
	return reached
}

func printProcesses(w io.Writer, title string, f *footprint) {
	fmt.Fprintf(w, "\n%-24s %5s %9s %9s %10s %13s %8s\n", title, "procs", "anon MiB", "PSS MiB", "CPU s/min", "written KiB/m", "threads")
	names := slices.SortedFunc(maps.Keys(f.byName), func(a, b string) int { return int(f.byName[b].anon - f.byName[a].anon) })
	for _, n := range names {
		u := f.byName[n]
		fmt.Fprintf(w, "%-24s %5d %9.1f %9.1f %10.2f %13.0f %8d\n",
			n, u.processes, float64(u.anon)/mib, float64(u.pss)/mib, u.cpu, float64(u.written)/1024, u.threads)
	}
}
