package datastore

import (
	"context"
	"errors"
	"fmt"

	"github.com/k3s-io/kine/pkg/server"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// directObjects is the interface by which API servers read and write all of their objects.
type directObjects struct{ kv *directKV }

var _ kubernetes.Interface = (*directObjects)(nil)

// Get reads a key; the response has none when it is not there.
func (d *directObjects) Get(ctx context.Context, key string, opts kubernetes.GetOptions) (kubernetes.GetResponse, error) {
	at, kv, err := d.kv.db.Get(ctx, key, opts.Revision, false)
	return kubernetes.GetResponse{KV: toKV(kv), Revision: at}, clientError(err)
}

// List reads the keys with a prefix, or those from Continue on.
func (d *directObjects) List(ctx context.Context, prefix string, opts kubernetes.ListOptions) (kubernetes.ListResponse, error) {
	start := prefix
	if opts.Continue != "" {
		start = opts.Continue
	}
	at, kvs, _, count, err := d.kv.list(ctx, start, clientv3.GetPrefixRangeEnd(prefix), opts.Limit, opts.Revision, false)
	return kubernetes.ListResponse{Kvs: kvs, Count: count, Revision: at}, clientError(err)
}

// Count is the number of keys with a prefix.
func (d *directObjects) Count(ctx context.Context, prefix string, _ kubernetes.CountOptions) (int64, error) {
	_, n, err := d.kv.db.Count(ctx, prefix, clientv3.GetPrefixRangeEnd(prefix), 0)
	return n, clientError(err)
}

// OptimisticPut writes a key if it is still at a revision, 0 for one that is not there.
func (d *directObjects) OptimisticPut(ctx context.Context, key string, value []byte, expected int64, opts kubernetes.PutOptions) (kubernetes.PutResponse, error) {
	at, now, ok, err := d.kv.put(ctx, key, value, expected, int64(opts.LeaseID))
	response := kubernetes.PutResponse{Succeeded: ok, Revision: at}
	if !ok && opts.GetOnFailure {
		response.KV = toKV(now)
	}
	return response, clientError(err)
}

// OptimisticDelete removes a key if it is still at a revision.
func (d *directObjects) OptimisticDelete(ctx context.Context, key string, expected int64, opts kubernetes.DeleteOptions) (kubernetes.DeleteResponse, error) {
	at, now, ok, err := d.kv.remove(ctx, key, expected)
	response := kubernetes.DeleteResponse{Succeeded: ok, Revision: at}
	if !ok && opts.GetOnFailure {
		response.KV = toKV(now)
	}
	return response, clientError(err)
}

// put creates or updates a key that is at revision, or tells what it is now.
func (d *directKV) put(ctx context.Context, key string, value []byte, revision, lease int64) (at int64, now *server.KeyValue, ok bool, err error) {
	if revision != 0 {
		at, now, ok, err = d.db.Update(ctx, key, value, revision, lease)
		return at, now, ok, err
	}
	at, err = d.db.Create(ctx, key, value, lease)
	if errors.Is(err, server.ErrKeyExists) {
		at, now, err = d.db.Get(ctx, key, 0, false)
		return at, now, false, err
	}
	return at, nil, err == nil, err
}

// remove deletes a key that is at revision. With 0 nothing is there to delete if the guard holds.
func (d *directKV) remove(ctx context.Context, key string, revision int64) (at int64, now *server.KeyValue, ok bool, err error) {
	if revision != 0 {
		return d.db.Delete(ctx, key, revision)
	}
	at, now, err = d.db.Get(ctx, key, 0, false)
	return at, now, err == nil && now == nil, err
}

// directTxn is a write of one key that is guarded by its revision or version.
type directTxn struct {
	kv       *directKV
	ctx      context.Context
	guard    []clientv3.Cmp
	then, or []clientv3.Op
}

func (t *directTxn) If(cs ...clientv3.Cmp) clientv3.Txn   { t.guard = append(t.guard, cs...); return t }
func (t *directTxn) Then(ops ...clientv3.Op) clientv3.Txn { t.then = append(t.then, ops...); return t }
func (t *directTxn) Else(ops ...clientv3.Op) clientv3.Txn { t.or = append(t.or, ops...); return t }

// A write by Txn has no lease: its number cannot be read from the operation, and API servers give leases by OptimisticPut only.
//
// Commit does the write, or reads the key if the guard does not hold and the transaction says so.
func (t *directTxn) Commit() (*clientv3.TxnResponse, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	guard, op := t.guard[0].GetCompare(), t.then[0]
	key := string(op.KeyBytes())
	revision := guard.GetModRevision()
	if guard.Target == pb.Compare_VERSION {
		at, now, err := t.kv.db.Get(t.ctx, key, 0, false)
		if err != nil {
			return nil, clientError(err)
		}
		version := int64(0)
		if now != nil {
			version, revision = now.Version, now.ModRevision
		}
		if version != guard.GetVersion() {
			return t.failed(at, now), nil
		}
	}
	var at int64
	var now *server.KeyValue
	var ok bool
	var err error
	if op.IsPut() {
		at, now, ok, err = t.kv.put(t.ctx, key, op.ValueBytes(), revision, 0)
	} else {
		at, now, ok, err = t.kv.remove(t.ctx, key, revision)
	}
	if err != nil {
		return nil, clientError(err)
	}
	if !ok {
		return t.failed(at, now), nil
	}
	return &clientv3.TxnResponse{Header: header(at), Succeeded: true, Responses: []*pb.ResponseOp{done(op, at)}}, nil
}

// check refuses other transactions.
func (t *directTxn) check() error {
	if len(t.guard) != 1 || len(t.then) != 1 || len(t.or) > 1 {
		return fmt.Errorf("transaction of more than one guarded write: %w", errUnsupported)
	}
	guard, op := t.guard[0].GetCompare(), t.then[0]
	if guard.Result != pb.Compare_EQUAL || guard.Target != pb.Compare_MOD && guard.Target != pb.Compare_VERSION {
		return fmt.Errorf("transaction with another guard than an equal revision or version: %w", errUnsupported)
	}
	sameKey := string(guard.Key) == string(op.KeyBytes()) && len(guard.RangeEnd)+len(op.RangeBytes()) == 0
	if !sameKey || !op.IsPut() && !op.IsDelete() || len(t.or) == 1 && !t.or[0].IsGet() {
		return fmt.Errorf("transaction other than a guarded write of one key: %w", errUnsupported)
	}
	return nil
}

func (t *directTxn) failed(at int64, now *server.KeyValue) *clientv3.TxnResponse {
	response := &clientv3.TxnResponse{Header: header(at)}
	if len(t.or) == 0 {
		return response
	}
	found := &pb.RangeResponse{Header: header(at)}
	if now != nil {
		found.Kvs, found.Count = append(found.Kvs, toKV(now)), 1
	}
	response.Responses = []*pb.ResponseOp{{Response: &pb.ResponseOp_ResponseRange{ResponseRange: found}}}
	return response
}

func done(op clientv3.Op, at int64) *pb.ResponseOp {
	if op.IsPut() {
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{Header: header(at)}}}
	}
	return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: &pb.DeleteRangeResponse{Header: header(at), Deleted: 1}}}
}
