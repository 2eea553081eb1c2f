package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	// The name of a process may hold spaces and parentheses.
	stat := "7 (a (b) c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 30 20 20 0 12 0 100 1000000 500\n"
	cpu, threads, err := parseStat(stat)
	if err != nil || cpu != 3.5 || threads != 12 {
		t.Errorf("got %v s, %d threads, %v; want 3.5 s and 12", cpu, threads, err)
	}
	if _, _, err := parseStat("7 (x) S 1"); err == nil {
		t.Error("a short line is taken")
	}
}

func TestNameOf(t *testing.T) {
	for cmdline, want := range map[string]string{
		"/x/bin/baseline\x00kine\x00sqlite://\x00":        "kine",
		"/x/bin/clusterd\x00server\x00":                   "clusterd",
		"/d/containerd-shim-runc-v2\x00-namespace\x00":    "shim",
		"/x/bin/baseline\x00kube-apiserver\x00--flag\x00": "kube-apiserver",
		"containerd\x00-c\x00/d/containerd.toml\x00":      "containerd",
	} {
		if got := nameOf(cmdline); got != want {
			t.Errorf("nameOf(%q) = %s, want %s", cmdline, got, want)
		}
	}
}

// TestProcesses samples the test itself.
func TestProcesses(t *testing.T) {
	ns, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	found, err := processes("/proc", ns)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range found {
		if p.pid == os.Getpid() {
			if p.anon <= 0 || p.pss < p.anon || p.threads < 2 {
				t.Errorf("implausible: %+v", p)
			}
			return
		}
	}
	t.Errorf("the test is not among %d processes", len(found))
}

func TestCompare(t *testing.T) {
	before := []process{{1, "kubelet", usage{1, 9, 100, 50, 10, 1000}}, {2, "shim", usage{1, 3, 9, 9, 1, 0}}}
	after := []process{
		{1, "kubelet", usage{1, 10, 120, 60, 12, 3000}},
		{2, "shim", usage{1, 3, 10, 10, 2, 0}},
		{3, "shim", usage{1, 3, 10, 10, 1, 0}},
	}
	f := compare(before, after, 30*time.Second)
	if want := (usage{1, 10, 120, 60, 4, 4000}); f.others != want {
		t.Errorf("others %+v, want %+v", f.others, want)
	}
	if want := (usage{2, 6, 20, 20, 4, 0}); f.shims != want {
		t.Errorf("shims %+v, want %+v", f.shims, want)
	}
}

func TestReport(t *testing.T) {
	figures := func(scale float64) *result {
		u := usage{processes: 1, anon: int64(1000 * scale), pss: int64(2000 * scale), cpu: 10 * scale}
		st := state{&footprint{byName: map[string]usage{"x": u}, others: u}, 100}
		return &result{first: times{1, 2 * scale, 3}, second: times{1, 2 * scale, 3}, few: st, many: st, wave: 100 * scale}
	}
	for _, row := range []struct {
		name    string
		scale   float64
		reached bool
	}{{"all reached", 0.3, true}, {"only CPU missed", 0.4, false}, {"all missed", 1.1, false}} {
		t.Run(row.name, func(t *testing.T) {
			var out bytes.Buffer
			if got := report(&out, 100, figures(row.scale), figures(1)); got != row.reached {
				t.Errorf("reached: %v, want %v\n%s", got, row.reached, out.String())
			}
			if got := strings.Contains(out.String(), "MISSED"); got == row.reached {
				t.Errorf("the words say otherwise:\n%s", out.String())
			}
		})
	}
	var out bytes.Buffer
	if !report(&out, 100, figures(1), nil) || strings.Contains(out.String(), "goals") {
		t.Errorf("goals without a second side:\n%s", out.String())
	}
}

// TestAgentReport has a node that is good enough, and one that needs too much of either.
func TestAgentReport(t *testing.T) {
	figures := func(anon int64, cpu float64) *result {
		shims := usage{anon: 1 << 20, cpu: 100} // the same on both sides, and in no goal
		return &result{few: state{footprint: &footprint{others: usage{anon: anon, cpu: cpu}, shims: shims}}}
	}
	for name, row := range map[string]struct {
		anon    int64
		cpu     float64
		reached bool
	}{"both": {690, 4.9, true}, "memory": {710, 4.9, false}, "CPU": {690, 5.1, false}} {
		var out bytes.Buffer
		if got := agentReport(&out, 10, figures(row.anon, row.cpu), figures(1000, 10)); got != row.reached {
			t.Errorf("%s: reached is %v:\n%s", name, got, &out)
		}
		if got := strings.Contains(out.String(), "MISSED"); got == row.reached {
			t.Errorf("%s: the words say otherwise:\n%s", name, &out)
		}
	}
}

func TestMedian(t *testing.T) {
	got := median([]times{{1, 9, 5}, {3, 7, 6}, {2, 8, 100}})
	if want := (times{2, 8, 6}); got != want {
		t.Errorf("median %v, want %v", got, want)
	}
}

func TestGoroutines(t *testing.T) {
	if got := goroutines("# TYPE go_goroutines gauge\ngo_goroutines 2446\ngo_threads 9\n"); got != 2446 {
		t.Errorf("%d, want 2446", got)
	}
}

// TestStoreGoals has a store that is good enough, and the same with one figure that is not.
func TestStoreGoals(t *testing.T) {
	at := func(name string, perSecond float64, p99 time.Duration, perWrite float64) figures {
		f := figures{name: name, perWrite: perWrite}
		for _, name := range []string{singleClient, "create", "update", "get", "list 500"} {
			f.phases = append(f.phases, phase{name, perSecond, time.Millisecond, p99, p99})
		}
		return f
	}
	all := round{
		at(grpcSide, 1000, 5*time.Millisecond, 10), at(directSide, 2000, time.Millisecond, 10),
		at("kine", 100, 100*time.Millisecond, 30), at("etcd", 400, time.Second, 30),
	}
	ours, direct, etcd := &all[0], &all[1], &all[3]
	var lines bytes.Buffer
	check := func(sync time.Duration, want bool, missed int) {
		t.Helper()
		lines.Reset()
		direct.sync = sync
		got := reportStoreGoals(&lines, []round{all})
		if n := strings.Count(lines.String(), "MISSED"); got != want || n != missed {
			t.Errorf("reached is %v, %d missed:\n%s", got, n, &lines)
		}
	}
	check(time.Millisecond, true, 0)
	check(time.Millisecond/2, false, 1)
	ours.phases[1].p99 = 11 * time.Millisecond
	check(time.Millisecond, false, 1)
	ours.phases[1].p99, etcd.phases[3].perSecond = time.Millisecond, 1100
	check(time.Millisecond, false, 1)
	direct.phases[3].perSecond, ours.perWrite = 3000, 16
	check(time.Millisecond, false, 1)
	ours.perWrite, ours.idle = 10, 2
	check(time.Millisecond, false, 1)
}

func TestMedians(t *testing.T) {
	at := func(rate float64, p99 time.Duration, idle float64) round {
		return round{{name: "a", phases: []phase{{"get", rate, 1, p99, p99}}, perWrite: rate, idle: idle}}
	}
	got := medians([]round{at(3, 10, 0), at(1, 30, 0), at(2, 20, 9)})[0]
	if want := (phase{"get", 2, 1, 20, 20}); got.phases[0] != want || got.perWrite != 2 || got.idle != 0 {
		t.Errorf("%+v", got)
	}
}

// A ratio is taken within a round, when the machine was equally fast for both.
func TestRatioOfRounds(t *testing.T) {
	at := func(ours, theirs float64) round {
		return round{{name: grpcSide, phases: []phase{{"create", ours, 0, 0, 0}}}, {name: "etcd", phases: []phase{{"create", theirs, 0, 0, 0}}}}
	}
	rounds := []round{at(30, 10), at(40, 40), at(200, 100)}
	goal := storeGoal{side: grpcSide, phase: "create", of: "rate", against: "etcd"}
	if got := middle(rounds, goal.ratio); got != 2 {
		t.Errorf("%v, want 2", got)
	}
}
