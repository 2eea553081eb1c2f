package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/clusterd/clusterd/internal/testkit/lab"
)

// clockTicks is the unit of CPU times in /proc, a constant of Linux's interface.
const clockTicks = 100

// usage is what a process, or a group of them, has and has used.
type usage struct {
	processes, threads int
	// pss and anon are the proportional set size and the part of it that the kernel cannot drop, in KiB.
	pss, anon int64
	// cpu is in seconds, with that of children that have ended and were waited for.
	cpu float64
	// written is in bytes, as handed to the storage layer.
	written int64
}

func (u usage) add(v usage) usage {
	return usage{u.processes + v.processes, u.threads + v.threads, u.pss + v.pss, u.anon + v.anon, u.cpu + v.cpu, u.written + v.written}
}

// since is the same group with cpu and written counted from an earlier sample of it.
func (u usage) since(earlier usage) usage {
	u.cpu -= earlier.cpu
	u.written -= earlier.written
	return u
}

// process is one sampled process.
type process struct {
	pid  int
	name string
	usage
}

// footprint is what the processes of a node use at idle: memory at the end, CPU and writes for each minute of the sample.
type footprint struct {
	byName map[string]usage
	shims  usage
	others usage
}

// takeFootprint samples all processes in the node's own process namespace, which leaves containers out, at the beginning
// and the end of the time.
func takeFootprint(ctx context.Context, node *lab.Node, during time.Duration) (*footprint, error) {
	namespace, err := node.PIDNamespace()
	if err != nil {
		return nil, err
	}
	before, err := processes("/proc", namespace)
	if err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(during):
	}
	after, err := processes("/proc", namespace)
	if err != nil {
		return nil, err
	}
	return compare(before, after, during), nil
}

func compare(before, after []process, during time.Duration) *footprint {
	earlier := map[int]usage{}
	for _, p := range before {
		earlier[p.pid] = p.usage
	}
	f := &footprint{byName: map[string]usage{}}
	for _, p := range after {
		u := p.since(earlier[p.pid])
		u.cpu /= during.Minutes()
		u.written = int64(float64(u.written) / during.Minutes())
		f.byName[p.name] = f.byName[p.name].add(u)
		if p.name == "shim" {
			f.shims = f.shims.add(u)
		} else {
			f.others = f.others.add(u)
		}
	}
	return f
}

// bystanders keep the lab's node alive, and hold the baseline together.
var bystanders = []string{"sleep", "up", "join"}

// processes samples what is in the process namespace, bystanders left out.
func processes(proc, namespace string) ([]process, error) {
	dirs, err := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	if err != nil {
		return nil, err
	}
	var found []process
	for _, dir := range dirs {
		ns, err := os.Readlink(filepath.Join(dir, "ns", "pid"))
		if err != nil || ns != namespace {
			continue
		}
		p, err := sample(dir)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it ended meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("sample %s: %w", dir, err)
		}
		if !slices.Contains(bystanders, p.name) {
			found = append(found, p)
		}
	}
	return found, nil
}

func sample(dir string) (p process, err error) {
	if p.pid, err = strconv.Atoi(filepath.Base(dir)); err != nil {
		return p, err
	}
	var files [4]string
	for i, name := range []string{"cmdline", "stat", "io", "smaps_rollup"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return p, err
		}
		files[i] = string(b)
	}
	p.name, p.processes = nameOf(files[0]), 1
	if p.cpu, p.threads, err = parseStat(files[1]); err != nil {
		return p, err
	}
	p.written = number(files[2], "write_bytes:")
	p.pss, p.anon = number(files[3], "Pss:"), number(files[3], "Pss_Anon:")
	return p, nil
}

// nameOf names a process by its executable; the roles of the baseline's one executable are apart, and all shims together.
func nameOf(cmdline string) string {
	args := strings.Split(cmdline, "\x00")
	name := filepath.Base(args[0])
	if strings.Contains(name, "shim") {
		return "shim"
	}
	if name == "baseline" && len(args) > 1 {
		return args[1]
	}
	return name
}

// parseStat returns the CPU seconds and the number of threads in a /proc/PID/stat.
func parseStat(stat string) (cpu float64, threads int, err error) {
	_, rest, found := strings.Cut(stat[strings.LastIndexByte(stat, ')')+1:], " ")
	fields := strings.Fields(rest)
	if !found || len(fields) < 18 {
		return 0, 0, fmt.Errorf("unknown format: %q", stat)
	}
	for _, f := range fields[11:15] { // utime, stime, cutime, cstime
		ticks, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return 0, 0, err
		}
		cpu += ticks / clockTicks
	}
	threads, err = strconv.Atoi(fields[17])
	return cpu, threads, err
}

// number returns the number behind a key at the beginning of a line; 0 when there is none.
func number(text, key string) int64 {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n
		}
	}
	return 0
}
