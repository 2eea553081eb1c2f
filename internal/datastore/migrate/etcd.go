package migrate

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/clusterd/clusterd/internal/datastore/endpoint"
	"github.com/clusterd/clusterd/internal/datastore/engine"
	"github.com/clusterd/clusterd/internal/datastore/external"
)

// pageSize is how many keys are read at a time.
const pageSize = 500

// etcdKeys is an etcd at one revision.
type etcdKeys struct {
	client   *clientv3.Client
	revision int64
	left     map[int64]int64 // seconds that leases have left
}

func openEtcd(ctx context.Context, e endpoint.Endpoint, log *slog.Logger) (*etcdKeys, error) {
	if err := external.Wait(ctx, e, log); err != nil {
		return nil, err
	}
	c, err := external.DialEtcd(context.WithoutCancel(ctx), e)
	if err != nil {
		return nil, err
	}
	k := &etcdKeys{client: c}
	if err := k.now(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return k, nil
}

// now takes up the last revision.
func (k *etcdKeys) now(ctx context.Context) error {
	r, err := k.client.Get(ctx, mark, clientv3.WithCountOnly())
	if err != nil {
		return fmt.Errorf("read last revision: %w", err)
	}
	k.revision, k.left = r.Header.Revision, map[int64]int64{}
	return nil
}

func (k *etcdKeys) close() { _ = k.client.Close() }

func (k *etcdKeys) count(ctx context.Context) (int64, error) {
	r, err := k.client.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithCountOnly(), clientv3.WithRev(k.revision))
	if err != nil {
		return 0, err
	}
	return r.Count, nil
}

func (k *etcdKeys) live(ctx context.Context, each func(engine.Record) error) (int64, error) {
	for from := "\x00"; ; {
		page, err := k.client.Get(ctx, from, clientv3.WithFromKey(), clientv3.WithLimit(pageSize), clientv3.WithRev(k.revision))
		if err != nil {
			return 0, fmt.Errorf("read keys: %w", err)
		}
		for _, kv := range page.Kvs {
			lease, err := k.lease(ctx, kv.Lease)
			if err != nil {
				return 0, err
			}
			if err := each(engine.Record{Key: string(kv.Key), Value: kv.Value, Revision: kv.ModRevision, Created: kv.CreateRevision, Lease: lease}); err != nil {
				return 0, err
			}
			from = string(kv.Key) + "\x00"
		}
		if !page.More {
			return k.revision, nil
		}
	}
}

// lease is the time that a lease has left, asked once and at least a second, so that its keys are not kept for ever.
func (k *etcdKeys) lease(ctx context.Context, id int64) (int64, error) {
	if id == 0 {
		return 0, nil
	}
	if left, known := k.left[id]; known {
		return left, nil
	}
	r, err := k.client.TimeToLive(ctx, clientv3.LeaseID(id))
	if err != nil {
		return 0, fmt.Errorf("read lease: %w", err)
	}
	k.left[id] = max(r.TTL, 1)
	return k.left[id], nil
}

// etcdTarget is an etcd that is written. Until all is there and checked it holds a mark.
type etcdTarget struct {
	*etcdKeys
	from string
}

// openEtcdTarget refuses an etcd with keys in it, unless they are an interrupted copy of the same source.
func openEtcdTarget(ctx context.Context, e endpoint.Endpoint, from string, log *slog.Logger) (target, error) {
	keys, err := openEtcd(ctx, e, log)
	if err != nil {
		return nil, err
	}
	t := &etcdTarget{etcdKeys: keys, from: from}
	if err := t.prepare(ctx); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (*etcdTarget) keeps() bool { return false }

func (t *etcdTarget) prepare(ctx context.Context) error {
	marked, err := t.client.Get(ctx, mark)
	if err != nil {
		return err
	}
	if len(marked.Kvs) == 0 || string(marked.Kvs[0].Value) != t.from {
		found := int64(0)
		if _, err := t.live(ctx, func(r engine.Record) error {
			if !own(r.Key) {
				found++
			}
			return nil
		}); err != nil {
			return err
		}
		if found > 0 || len(marked.Kvs) > 0 {
			return notEmpty(found)
		}
		if _, err := t.client.Put(ctx, mark, t.from); err != nil {
			return fmt.Errorf("mark the copy as not whole: %w", err)
		}
	}
	return nil
}

func (t *etcdTarget) write(ctx context.Context, _ int64, records func(func(engine.Record) error) error, check func(source) error) (int64, error) {
	// What an interrupted run has left; the mark stays.
	for _, part := range [][2]string{{"\x00", mark}, {mark + "\x00", "\x00"}} {
		if _, err := t.client.Delete(ctx, part[0], clientv3.WithRange(part[1])); err != nil {
			return 0, fmt.Errorf("remove an interrupted copy: %w", err)
		}
	}
	leases := &leases{client: t.client, granted: map[int64]clientv3.LeaseID{}}
	if err := putAll(ctx, records, leases.put); err != nil {
		return 0, err
	}
	if err := t.now(ctx); err != nil {
		return 0, err
	}
	if err := check(t.etcdKeys); err != nil {
		return 0, err
	}
	r, err := t.client.Delete(ctx, mark)
	if err != nil {
		return 0, fmt.Errorf("mark the copy as whole: %w", err)
	}
	return r.Header.Revision, nil
}

// leases are those granted for the copy, one for each number of seconds.
type leases struct {
	client  *clientv3.Client
	mu      sync.Mutex
	granted map[int64]clientv3.LeaseID
}

func (l *leases) put(ctx context.Context, r engine.Record) error {
	if r.Lease == 0 {
		_, err := l.client.Put(ctx, r.Key, string(r.Value))
		return err
	}
	id, err := l.grant(ctx, r.Lease)
	if err != nil {
		return err
	}
	_, err = l.client.Put(ctx, r.Key, string(r.Value), clientv3.WithLease(id))
	return err
}

func (l *leases) grant(ctx context.Context, seconds int64) (clientv3.LeaseID, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id, ok := l.granted[seconds]; ok {
		return id, nil
	}
	lease, err := l.client.Grant(ctx, seconds)
	if err != nil {
		return 0, err
	}
	l.granted[seconds] = lease.ID
	return lease.ID, nil
}
