package migrate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/clusterd/clusterd/internal/datastore/endpoint"
	"github.com/clusterd/clusterd/internal/datastore/engine"
	"github.com/clusterd/clusterd/internal/datastore/external"
)

// natsKeys is a NATS bucket at one revision.
type natsKeys struct {
	b        *external.Backend
	revision int64
}

func openNATS(ctx context.Context, e endpoint.Endpoint, log *slog.Logger) (*natsKeys, error) {
	b, err := external.Open(ctx, e, log)
	if err != nil {
		return nil, err
	}
	return &natsKeys{b, b.Current()}, nil
}

func (n *natsKeys) close() { n.b.Close() }

func (n *natsKeys) count(ctx context.Context) (int64, error) {
	_, all, err := n.b.Count(ctx, "/", "0", n.revision)
	return all, err
}

func (n *natsKeys) live(ctx context.Context, each func(engine.Record) error) (int64, error) {
	_, kvs, err := n.b.List(ctx, "/", "0", 0, n.revision, false)
	if err != nil {
		return 0, fmt.Errorf("read keys: %w", err)
	}
	for _, kv := range kvs {
		if err := each(engine.Record{Key: kv.Key, Value: kv.Value, Revision: kv.ModRevision, Created: kv.CreateRevision, Lease: kv.Lease}); err != nil {
			return 0, err
		}
	}
	return n.revision, nil
}

// natsTarget is a bucket that is written. Until all is there and checked it holds a mark.
type natsTarget struct {
	*natsKeys
	from string
}

// openNATSTarget refuses a bucket with keys in it, unless they are an interrupted copy of the same source.
func openNATSTarget(ctx context.Context, e endpoint.Endpoint, from string, log *slog.Logger) (target, error) {
	keys, err := openNATS(ctx, e, log)
	if err != nil {
		return nil, err
	}
	t := &natsTarget{natsKeys: keys, from: from}
	if err := t.prepare(ctx); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (*natsTarget) keeps() bool { return false }

func (t *natsTarget) prepare(ctx context.Context) error {
	_, marked, err := t.b.Get(ctx, mark, 0, false)
	if err != nil {
		return err
	}
	if marked != nil && string(marked.Value) == t.from {
		return nil
	}
	found := int64(0)
	if _, err := t.live(ctx, func(r engine.Record) error {
		if !own(r.Key) {
			found++
		}
		return nil
	}); err != nil {
		return err
	}
	if found > 0 || marked != nil {
		return notEmpty(found)
	}
	if _, err := t.b.Create(ctx, mark, []byte(t.from), 0); err != nil {
		return fmt.Errorf("mark the copy as not whole: %w", err)
	}
	return nil
}

func (t *natsTarget) write(ctx context.Context, _ int64, records func(func(engine.Record) error) error, check func(source) error) (int64, error) {
	left := func(yield func(engine.Record) error) error {
		_, err := t.live(ctx, func(r engine.Record) error {
			if own(r.Key) {
				return nil
			}
			return yield(r)
		})
		return err
	}
	if err := putAll(ctx, left, t.remove); err != nil {
		return 0, fmt.Errorf("remove an interrupted copy: %w", err)
	}
	if err := putAll(ctx, records, t.put); err != nil {
		return 0, err
	}
	t.revision = t.b.Current()
	if err := check(t.natsKeys); err != nil {
		return 0, err
	}
	_, marked, err := t.b.Get(ctx, mark, 0, false)
	if err == nil && marked == nil {
		err = errors.New("somebody else has done it")
	}
	if err == nil {
		err = t.remove(ctx, engine.Record{Key: mark, Revision: marked.ModRevision})
	}
	if err != nil {
		return 0, fmt.Errorf("mark the copy as whole: %w", err)
	}
	return t.b.Current(), nil
}

func (t *natsTarget) put(ctx context.Context, r engine.Record) error {
	_, err := t.b.Create(ctx, r.Key, r.Value, r.Lease)
	return err
}

func (t *natsTarget) remove(ctx context.Context, r engine.Record) error {
	_, _, ok, err := t.b.Delete(ctx, r.Key, r.Revision)
	if err == nil && !ok {
		err = fmt.Errorf("%s was changed meanwhile", r.Key)
	}
	return err
}
