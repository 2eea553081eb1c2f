package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/clusterd/clusterd/internal/datastore/engine"
)

// backlog is a store that has fallen behind with compaction, and the writes that go on while it catches up.
type backlog struct {
	revisions, keys, size, rate int
}

// slowest is how long the 99th percentile of the writes may take meanwhile.
const slowest = 100 * time.Millisecond

// backlogWriters make the backlog, many at a time so that they share transactions.
const backlogWriters = 256

func compactionCommand(ctx context.Context, args []string) error {
	var b backlog
	flags := flag.NewFlagSet("bench compaction", flag.ContinueOnError)
	flags.IntVar(&b.revisions, "revisions", 1000000, "revisions that compaction finds")
	flags.IntVar(&b.keys, "keys", 5000, "keys that they are of")
	flags.IntVar(&b.size, "size", 512, "bytes of a value")
	flags.IntVar(&b.rate, "rate", 200, "writes a second meanwhile")
	if err := flags.Parse(args); err != nil {
		return err
	}
	return b.run(ctx)
}

func (b backlog) run(ctx context.Context) error {
	dir, err := os.MkdirTemp("/var/tmp", "clusterd-bench-compaction-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "state.db")
	e, err := engine.Open(ctx, engine.Config{Path: path, Retain: 24 * time.Hour, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		return err
	}
	began := time.Now()
	if err := b.fill(ctx, e); err != nil {
		e.Close()
		return fmt.Errorf("make the backlog: %w", err)
	}
	fmt.Printf("%d revisions of %d keys written in %.1f s, file %s\n", b.revisions, b.keys, time.Since(began).Seconds(), megabytes(path))
	e.Close()
	began = time.Now()
	if e, err = engine.Open(ctx, engine.Config{Path: path, Retain: 24 * time.Hour, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}); err != nil {
		return err
	}
	fmt.Printf("opened again in %.2f s\n", time.Since(began).Seconds())
	quiet, err := b.write(ctx, e, func() bool { return false }, 5*time.Second)
	if err == nil {
		_, err = e.Compact(ctx, e.Revisions().Current)
	}
	began = time.Now()
	var busy []time.Duration
	if err == nil {
		busy, err = b.write(ctx, e, func() bool { s, err := e.Stats(); return err == nil && s.Settled }, time.Hour)
	}
	if err != nil {
		e.Close()
		return err
	}
	took := time.Since(began)
	fmt.Printf("compacted in %.1f s, file %s, write-ahead log %s\n", took.Seconds(), megabytes(path), megabytes(path+"-wal"))
	e.Close()
	fmt.Printf("after the end, file %s\n", megabytes(path))
	for _, p := range []struct {
		name string
		d    []time.Duration
	}{{"before", quiet}, {"while it catches up", busy}} {
		if len(p.d) > 0 {
			slices.Sort(p.d)
			at := func(q float64) float64 { return milliseconds(p.d[int(q*float64(len(p.d)-1))]) }
			fmt.Printf("%-24s %5d writes  p50 %7.1f  p99 %7.1f  max %7.1f ms\n", p.name, len(p.d), at(.5), at(.99), at(1))
		}
	}
	if len(busy) > 0 && busy[int(0.99*float64(len(busy)-1))] > slowest {
		fmt.Printf("p99 while it catches up: at most %v  MISSED\n", slowest)
		return errMissed
	}
	fmt.Printf("p99 while it catches up: at most %v  reached\n", slowest)
	return nil
}

func megabytes(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return "gone"
	}
	return fmt.Sprintf("%.1f MB", float64(info.Size())/1e6)
}

// fill writes every key again and again.
func (b backlog) fill(ctx context.Context, e *engine.Engine) error {
	value := make([]byte, b.size)
	var wg sync.WaitGroup
	failures := make(chan error, backlogWriters)
	for w := range backlogWriters {
		wg.Go(func() {
			revisions := map[int]int64{}
			for i := w; i < b.revisions; i += backlogWriters {
				k := i%b.keys/backlogWriters*backlogWriters + w
				var err error
				if revisions[k] == 0 {
					revisions[k], err = e.Create(ctx, fmt.Sprintf("/registry/backlog/%d", k), value, 0)
				} else {
					revisions[k], _, _, err = e.Update(ctx, fmt.Sprintf("/registry/backlog/%d", k), value, revisions[k], 0)
				}
				if err != nil {
					failures <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(failures)
	return <-failures
}

// write creates keys at the rate until done, or for a time, and returns how long each took. They do not wait for each other.
func (b backlog) write(ctx context.Context, e *engine.Engine, done func() bool, atMost time.Duration) ([]time.Duration, error) {
	tick := time.NewTicker(time.Second / time.Duration(b.rate))
	defer tick.Stop()
	var mu sync.Mutex
	var took []time.Duration
	var failure error
	var wg sync.WaitGroup
	end := time.Now().Add(atMost)
	for i := 0; time.Now().Before(end); i++ {
		if i%b.rate == 0 && done() {
			break
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
		key := fmt.Sprintf("/registry/meanwhile/%d-%d", end.UnixNano(), i)
		wg.Go(func() {
			began := time.Now()
			_, err := e.Create(ctx, key, make([]byte, b.size), 0)
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(began))
			if err != nil {
				failure = err
			}
		})
	}
	wg.Wait()
	return took, failure
}
