package datastore

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/k3s-io/kine/pkg/server"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// errUnsupported is for calls of etcd that no API server makes.
var errUnsupported = errors.New("not supported by clusterd's datastore")

// directKV is etcd's interface to keys.
type directKV struct{ db backend }

var _ clientv3.KV = (*directKV)(nil)

// clientError turns the store's errors into those of etcd's client, which callers compare with.
func clientError(err error) error {
	if err == nil {
		return nil
	}
	return rpctypes.Error(err)
}

func header(revision int64) *pb.ResponseHeader { return &pb.ResponseHeader{Revision: revision} }

func toKV(kv *server.KeyValue) *mvccpb.KeyValue {
	if kv == nil {
		return nil
	}
	return &mvccpb.KeyValue{
		Key: []byte(kv.Key), Value: kv.Value, Version: kv.Version, Lease: kv.Lease,
		CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision,
	}
}

func toKVs(kvs []*server.KeyValue) []*mvccpb.KeyValue {
	all := make([]*mvccpb.KeyValue, len(kvs))
	for i, kv := range kvs {
		all[i] = toKV(kv)
	}
	return all
}

// Get reads a key or a range.
func (d *directKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	op := clientv3.OpGet(key, opts...)
	return d.get(ctx, op)
}

func (d *directKV) get(ctx context.Context, op clientv3.Op) (*clientv3.GetResponse, error) {
	if op.IsSortSet() || op.MinModRev()|op.MaxModRev()|op.MinCreateRev()|op.MaxCreateRev() != 0 {
		return nil, fmt.Errorf("get with sorting or revision bounds: %w", errUnsupported)
	}
	key, end := string(op.KeyBytes()), rangeEnd(op)
	if op.IsCountOnly() {
		revision, n, err := d.db.Count(ctx, key, end, op.Rev())
		if err != nil {
			return nil, clientError(err)
		}
		return &clientv3.GetResponse{Header: header(revision), Count: n}, nil
	}
	revision, kvs, more, count, err := d.list(ctx, key, end, op.Limit(), op.Rev(), op.IsKeysOnly())
	if err != nil {
		return nil, clientError(err)
	}
	return &clientv3.GetResponse{Header: header(revision), Kvs: kvs, More: more, Count: count}, nil
}

// rangeEnd is the end of op's range in the engine's terms: empty for one key.
func rangeEnd(op clientv3.Op) string {
	if end := op.RangeBytes(); !bytes.Equal(end, []byte{0}) {
		return string(end)
	}
	return "\xff\xff" // etcd's form for everything from the key on; no key begins like this
}

// list reads up to limit keys and tells whether there are more, and how many there are in all.
func (d *directKV) list(ctx context.Context, key, end string, limit, revision int64, keysOnly bool) (int64, []*mvccpb.KeyValue, bool, int64, error) {
	ask := limit
	if ask > 0 {
		ask++
	}
	at, kvs, err := d.db.List(ctx, key, end, ask, revision, keysOnly)
	if err != nil {
		return 0, nil, false, 0, err
	}
	count := int64(len(kvs))
	if limit == 0 || count <= limit {
		return at, toKVs(kvs), false, count, nil
	}
	if revision == 0 {
		revision = at
	}
	if _, count, err = d.db.Count(ctx, key, end, revision); err != nil {
		return 0, nil, false, 0, err
	}
	return at, toKVs(kvs[:limit]), true, count, nil
}

// GetStream is refused: an error in the middle could not be told, since the field for it is etcd's own.
func (d *directKV) GetStream(context.Context, string, ...clientv3.OpOption) (clientv3.GetStreamChan, error) {
	return nil, errUnsupported
}

// Put is refused: API servers write with a guard.
func (d *directKV) Put(context.Context, string, string, ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	return nil, fmt.Errorf("put without a guard: %w", errUnsupported)
}

// Delete is refused: API servers delete with a guard.
func (d *directKV) Delete(context.Context, string, ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	return nil, fmt.Errorf("delete without a guard: %w", errUnsupported)
}

// Do is Get for an operation that is one.
func (d *directKV) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	if !op.IsGet() {
		return clientv3.OpResponse{}, fmt.Errorf("operation other than get: %w", errUnsupported)
	}
	response, err := d.get(ctx, op)
	if err != nil {
		return clientv3.OpResponse{}, err
	}
	return response.OpResponse(), nil
}

// Compact gives up everything below revision.
func (d *directKV) Compact(ctx context.Context, revision int64, _ ...clientv3.CompactOption) (*clientv3.CompactResponse, error) {
	at, err := d.db.Compact(ctx, revision)
	if err != nil {
		return nil, clientError(err)
	}
	return &clientv3.CompactResponse{Header: header(at)}, nil
}

// Txn returns a guarded write.
func (d *directKV) Txn(ctx context.Context) clientv3.Txn { return &directTxn{kv: d, ctx: ctx} }
