package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// medians is one store's figures over several rounds.
func medians(rounds []figures) figures {
	m := figures{name: rounds[0].name, phases: make([]phase, len(rounds[0].phases))}
	for i, p := range rounds[0].phases {
		m.phases[i] = phase{
			name:      p.name,
			perSecond: middle(rounds, func(f figures) float64 { return f.phases[i].perSecond }),
			p50:       middle(rounds, func(f figures) time.Duration { return f.phases[i].p50 }),
			p99:       middle(rounds, func(f figures) time.Duration { return f.phases[i].p99 }),
			slowest:   middle(rounds, func(f figures) time.Duration { return f.phases[i].slowest }),
		}
	}
	m.perWrite = middle(rounds, func(f figures) float64 { return f.perWrite })
	m.idle = middle(rounds, func(f figures) float64 { return f.idle })
	return m
}

func middle[T float64 | time.Duration](rounds []figures, of func(figures) T) T {
	var all []T
	for _, f := range rounds {
		all = append(all, of(f))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// reportStores prints the figures of all stores, and those of ours as ratios to the others'.
func reportStores(w io.Writer, all []figures) {
	var others []figures
	fmt.Fprintf(w, "\n%-18s", "")
	for _, f := range all {
		fmt.Fprintf(w, " %28s", f.name)
		if f.name != grpcSide && f.name != directSide {
			others = append(others, f)
		}
	}
	for _, f := range others {
		fmt.Fprintf(w, " %10s", "of "+f.name)
	}
	fmt.Fprintf(w, "\n%-18s", "")
	for range all {
		fmt.Fprintf(w, " %8s %9s %9s", "op/s", "p99 ms", "max ms")
	}
	fmt.Fprintln(w)
	for i, p := range all[0].phases {
		fmt.Fprintf(w, "%-18s", p.name)
		for _, f := range all {
			fmt.Fprintf(w, " %8.0f %9.2f %9.1f", f.phases[i].perSecond, milliseconds(f.phases[i].p99), milliseconds(f.phases[i].slowest))
		}
		for _, f := range others {
			fmt.Fprintf(w, " %10.2f", p.perSecond/f.phases[i].perSecond)
		}
		fmt.Fprintln(w)
	}
	line := func(what string, of func(figures) float64) {
		fmt.Fprintf(w, "%-18s", what)
		for _, f := range all {
			fmt.Fprintf(w, " %28.1f", of(f))
		}
		fmt.Fprintln(w)
	}
	line("bytes a write", func(f figures) float64 { return f.perWrite })
	line("idle CPU, ms/s", func(f figures) float64 { return f.idle })
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
