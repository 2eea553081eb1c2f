package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/k3s-io/kine/pkg/server"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// streamed is how many values ListStream reads at a time.
const streamed = 256

// errGone is for a value that was compacted after its revision was looked up.
var errGone = errors.New("compacted meanwhile")

func keyValue(key string, v version) *server.KeyValue {
	return &server.KeyValue{Key: key, ModRevision: v.revision, CreateRevision: v.created, Version: int64(v.count), Lease: int64(v.lease)}
}

// find looks up the versions of a range that a reader at revision sees, or the latest when that is 0, without values. A
// limit of 0 is none.
func (e *Engine) find(key, end string, limit, revision int64) (current int64, kvs []*server.KeyValue, err error) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	seen, err := e.readable(revision)
	if err != nil {
		return e.current, nil, err
	}
	e.index.ascend(key, end, func(n *node) bool {
		if v, ok := n.at(seen); ok {
			kvs = append(kvs, keyValue(n.key, v))
		}
		return limit <= 0 || int64(len(kvs)) < limit
	})
	return e.current, kvs, nil
}

// readable is the revision to read at. The lock must be held.
func (e *Engine) readable(revision int64) (int64, error) {
	switch {
	case revision <= 0:
		return e.current, nil
	case revision > e.current:
		return 0, server.ErrFutureRev
	case revision < e.compacted:
		return 0, server.ErrCompacted
	}
	return revision, nil
}

// fill adds the values. The error is errGone when one is not there any more. A value that was asked for alone is cached; those
// of a list would push out all that is in use.
func (e *Engine) fill(kvs []*server.KeyValue) error {
	var missing []int64
	at := map[int64]*server.KeyValue{}
	for _, kv := range kvs {
		value, cached := e.cache.get(kv.ModRevision)
		if !cached {
			missing = append(missing, kv.ModRevision)
			at[kv.ModRevision] = kv
		}
		kv.Value = value
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing) // as they are in the file
	err := e.file.values(missing, func(revision int64, value []byte) {
		at[revision].Value = value
		delete(at, revision)
		if len(kvs) == 1 {
			e.cache.put(revision, value)
		}
	})
	if err != nil {
		e.log.Error("read the datastore", "err", e.file.explain(err))
		return rpctypes.ErrGRPCUnhealthy
	}
	if len(at) > 0 {
		return errGone
	}
	return nil
}

// Get reads one key; it is nil when it is not there.
func (e *Engine) Get(ctx context.Context, key string, revision int64, keysOnly bool) (int64, *server.KeyValue, error) {
	current, kvs, err := e.List(ctx, key, "", 1, revision, keysOnly)
	if err != nil || len(kvs) == 0 {
		return current, nil, err
	}
	return current, kvs[0], nil
}

// List reads a range in order, as it was at revision, or is when that is 0.
func (e *Engine) List(ctx context.Context, key, end string, limit, revision int64, keysOnly bool) (int64, []*server.KeyValue, error) {
	for {
		current, kvs, err := e.find(key, end, limit, revision)
		if err != nil || keysOnly {
			return current, kvs, err
		}
		switch err = e.fill(kvs); {
		case err == nil:
			return current, kvs, nil
		case !errors.Is(err, errGone):
			return current, nil, err
		case revision > 0:
			return current, nil, server.ErrCompacted
		case ctx.Err() != nil:
			return current, nil, ctx.Err()
		}
	}
}

// ListStream is List that reads the values as they are taken.
func (e *Engine) ListStream(ctx context.Context, key, end string, limit, revision int64, keysOnly bool) server.ListResult {
	values, failure := make(chan *server.KeyValue, streamed), make(chan error, 1)
	current, kvs, err := e.find(key, end, limit, revision)
	if err != nil {
		failure <- err
		close(values)
		close(failure)
		return server.ListResult{CurrentRevision: current, KVc: values, Errorc: failure}
	}
	go func() {
		defer close(failure)
		defer close(values)
		if err := e.stream(ctx, kvs, keysOnly, values); err != nil {
			failure <- err
		}
	}()
	return server.ListResult{CurrentRevision: current, KVc: values, Errorc: failure}
}

func (e *Engine) stream(ctx context.Context, kvs []*server.KeyValue, keysOnly bool, to chan<- *server.KeyValue) error {
	for len(kvs) > 0 {
		part := kvs[:min(len(kvs), streamed)]
		kvs = kvs[len(part):]
		if !keysOnly {
			if err := e.fill(part); errors.Is(err, errGone) {
				return server.ErrCompacted
			} else if err != nil {
				return fmt.Errorf("list: %w", err)
			}
		}
		for _, kv := range part {
			select {
			case to <- kv:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// Count is the number of keys of a range at revision, or now when that is 0.
func (e *Engine) Count(_ context.Context, key, end string, revision int64) (current, n int64, err error) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	seen, err := e.readable(revision)
	if err != nil {
		return e.current, 0, err
	}
	e.index.ascend(key, end, func(k *node) bool {
		if _, ok := k.at(seen); ok {
			n++
		}
		return true
	})
	return e.current, n, nil
}
