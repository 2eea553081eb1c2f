// Package migrate copies a cluster's state from one datastore to another of any kind.
//
// What it promises:
//   - The source is read at one revision and not changed. What is copied are the live keys with their values and, where the
//     target can keep them, their revisions; leases keep the time they have left.
//   - What has been written is read again and compared before it counts: all keys by number and digest.
//   - Nothing is half done: a database or a file gets all in one step, and in etcd and NATS, where that is not possible, a mark keeps an
//     interrupted copy from being taken for a whole one. Running it again begins anew.
//   - A target that holds anything else is refused, and so is a file that a server has open.
//
// Revisions of a target that keeps them go on above the source's, and all of those count as compacted: whoever was watching
// the old datastore lists again, and never sees a revision twice.
package migrate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/clusterd/clusterd/internal/datastore/endpoint"
	"github.com/clusterd/clusterd/internal/datastore/engine"
)

// Config says what to copy. All fields but Progress are required.
type Config struct {
	From, To endpoint.Endpoint
	// Progress is called now and then with the number of keys copied, and of all.
	Progress func(done, all int64)
	Log      *slog.Logger
}

// Report is what was copied.
type Report struct {
	Keys, Bytes int64
	// Revision is the last one of the target.
	Revision int64
	// Kept is whether the keys have the revisions that they had.
	Kept bool
	// Encrypted is the number of values that only an API server with the same encryption keys can read.
	Encrypted int64
}

// source is a datastore that is read, at one revision for its whole life.
type source interface {
	// live hands each the live keys, in any order.
	live(ctx context.Context, each func(engine.Record) error) (revision int64, err error)
	// count is the number of live keys, or near it.
	count(ctx context.Context) (int64, error)
	close()
}

// target is a datastore that is written.
type target interface {
	// write puts what records yields into the empty datastore, so that it counts when check, which reads what is there
	// now, finds nothing wrong. It returns the last revision.
	write(ctx context.Context, revision int64, records func(yield func(engine.Record) error) error, check func(source) error) (int64, error)
	keeps() bool
	close()
}

// Run copies.
func Run(ctx context.Context, c Config) (Report, error) {
	if c.From.String() == c.To.String() {
		return Report{}, fmt.Errorf("source and target are the same: %s", c.From)
	}
	from, err := openSource(ctx, c.From, c.Log)
	if err != nil {
		return Report{}, fmt.Errorf("read %s: %w", c.From, err)
	}
	defer from.close()
	to, err := openTarget(ctx, c.To, c.From.String(), c.Log)
	if err != nil {
		return Report{}, fmt.Errorf("write %s: %w", c.To, err)
	}
	defer to.close()
	return c.copy(ctx, from, to)
}

// copy reads the source twice: the digest is known before the first key is written, and so is the last revision.
func (c Config) copy(ctx context.Context, from source, to target) (Report, error) {
	all, err := from.count(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("read %s: %w", c.From, err)
	}
	want := &digest{}
	revision, err := from.live(ctx, want.add)
	if err != nil {
		return Report{}, fmt.Errorf("read %s: %w", c.From, err)
	}
	if want.keys == 0 {
		return Report{}, fmt.Errorf("read %s: there is no cluster in it", c.From)
	}
	distinct := &distinct{used: map[int64]bool{}}
	done := int64(0)
	records := func(yield func(engine.Record) error) error {
		_, err := from.live(ctx, func(r engine.Record) error {
			if own(r.Key) {
				return nil
			}
			if done++; c.Progress != nil && done%100 == 0 {
				c.Progress(done, max(all, done))
			}
			return yield(distinct.number(r))
		})
		return err
	}
	check := func(written source) error {
		got := &digest{}
		if _, err := written.live(ctx, got.add); err != nil {
			return fmt.Errorf("read again: %w", err)
		}
		return got.compare(want)
	}
	last, err := to.write(ctx, revision, records, check)
	if err != nil {
		return Report{}, fmt.Errorf("write %s: %w", c.To, err)
	}
	return Report{Keys: want.keys, Bytes: want.bytes, Revision: last, Kept: to.keeps(), Encrypted: want.encrypted}, nil
}

// mark is the key that says in a datastore without transactions that a copy is not whole.
const mark = "/clusterd/migration"

// own is whether a key belongs to a datastore's own working and not to the cluster: the marks of compaction, the fillings of
// kine, the key of health checks, and k3s's encrypted certificates, which nothing here could use.
func own(key string) bool {
	switch key {
	case "compact_rev_key", "compact_rev_key_apiserver", "/registry/health", mark:
		return true
	}
	return strings.HasPrefix(key, "gap-") || strings.HasPrefix(key, "/bootstrap/")
}

// distinct gives each record a revision of its own: etcd's transactions can write several keys at one.
type distinct struct {
	used map[int64]bool
}

func (d *distinct) number(r engine.Record) engine.Record {
	for d.used[r.Revision] && r.Revision > 1 {
		r.Revision--
	}
	d.used[r.Revision] = true
	r.Created = min(r.Created, r.Revision)
	return r
}

// ErrNotEmpty is for a target that holds a cluster already.
var ErrNotEmpty = errors.New("it is not empty")

func notEmpty(keys int64) error {
	return fmt.Errorf("%w: it holds %d keys; only an empty datastore, or an interrupted copy of the same source, is written to", ErrNotEmpty, keys)
}
