package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// round is the figures of all stores, taken one after the other.
type round []figures

// side is the figures of one store in the round, nil without it.
func (r round) side(name string) *figures {
	for i := range r {
		if r[i].name == name {
			return &r[i]
		}
	}
	return nil
}

// medians is each store's figures over several rounds.
func medians(rounds []round) round {
	var all round
	for _, first := range rounds[0] {
		one := func(of func(figures) float64) float64 {
			return middle(rounds, func(r round) float64 { return of(*r.side(first.name)) })
		}
		took := func(of func(figures) time.Duration) time.Duration {
			return middle(rounds, func(r round) time.Duration { return of(*r.side(first.name)) })
		}
		m := figures{name: first.name, phases: make([]phase, len(first.phases))}
		for i, p := range first.phases {
			m.phases[i] = phase{
				name:      p.name,
				perSecond: one(func(f figures) float64 { return f.phases[i].perSecond }),
				p50:       took(func(f figures) time.Duration { return f.phases[i].p50 }),
				p99:       took(func(f figures) time.Duration { return f.phases[i].p99 }),
				slowest:   took(func(f figures) time.Duration { return f.phases[i].slowest }),
			}
		}
		m.perWrite = one(func(f figures) float64 { return f.perWrite })
		m.idle = one(func(f figures) float64 { return f.idle })
		all = append(all, m)
	}
	return all
}

// middle is the median of a figure over rounds.
func middle[T float64 | time.Duration](rounds []round, of func(round) T) T {
	var all []T
	for _, r := range rounds {
		all = append(all, of(r))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// reportStores prints the figures of all stores, and those of ours as ratios to the others'.
func reportStores(w io.Writer, all round) {
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
