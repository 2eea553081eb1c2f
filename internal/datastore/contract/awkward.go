package contract

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// Awkward are keys and values that a store could trip over, for the suite and as seeds for fuzzing.
var Awkward = []struct {
	Key   string
	Value []byte
}{
	{"empty", nil},
	{"zero", []byte{0}},
	{"text", []byte("text")},
	{"binary", []byte("k8s\x00\n\x0c\n\x02v1\x12\x06Secret\xff\xfe\x80")},
	{"null", []byte("null")},
	{"number", []byte("12345678901234567890")},
	{"json", []byte(`{"a":["b\u0000",1e99]}`)},
	{"quote'\"`", []byte(`'; DROP TABLE log; --`)},
	{"percent%25_under_score%", []byte("%s%d%n")},
	{"back\\slash", []byte("\\")},
	{"space and\ttab\nline", []byte(" \r\n")},
	{"dots/../../.", []byte("..")},
	{"slashes//a///b/", []byte("/")},
	{"unicode-é世🚀", []byte("é世🚀")},
	{"composed-\u00e9", []byte("one")},
	{"composed-e\u0301", []byte("another")},
	{"CASE", []byte("upper")},
	{"case", []byte("lower")},
	{"1e3", []byte("1e3")},
	{"1000", []byte("1000")},
	{"0x10", []byte("0x10")},
	{"long-" + strings.Repeat("k", 500), bytes.Repeat([]byte("v"), 5000)},
	{"compact_rev_key", []byte("not that one")},
	{"gap-7", []byte("not that one")},
}

// RoundTrip creates, reads, lists, watches, changes and deletes a key, and wants its values back as they were each time. The
// key must not be there.
func RoundTrip(t *testing.T, c *kubernetes.Client, key string, value []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	other := append(bytes.Clone(value), 0xff)
	put := kubernetes.PutOptions{GetOnFailure: true}
	r, err := c.Kubernetes.OptimisticPut(ctx, key, value, 0, put)
	if err != nil || !r.Succeeded {
		t.Fatalf("create %q: %v, %v", key, r, err)
	}
	created := r.Revision
	for _, opts := range [][]clientv3.OpOption{{}, {clientv3.WithPrefix()}, {clientv3.WithRange(key + "\x00")}, {clientv3.WithRev(created)}} {
		got, err := c.KV.Get(ctx, key, opts...)
		if err != nil || len(got.Kvs) == 0 || string(got.Kvs[0].Key) != key || !bytes.Equal(got.Kvs[0].Value, value) {
			t.Fatalf("read %q: %v, %v, want %q", key, got, err, value)
		}
	}
	if r, err = c.Kubernetes.OptimisticPut(ctx, key, other, created, put); err != nil || !r.Succeeded {
		t.Fatalf("change %q: %v, %v", key, r, err)
	}
	d, err := c.Kubernetes.OptimisticDelete(ctx, key, r.Revision, kubernetes.DeleteOptions{GetOnFailure: true})
	if err != nil || !d.Succeeded {
		t.Fatalf("delete %q: %v, %v", key, d, err)
	}
	events := pending{from: c.Watch(ctx, key, clientv3.WithRev(created), clientv3.WithPrevKV())}
	for i, w := range []struct {
		now, before []byte
	}{{value, nil}, {other, value}, {nil, other}} {
		e := events.next(t)
		before := []byte(nil)
		if e.PrevKv != nil {
			before = e.PrevKv.Value
		}
		if string(e.Kv.Key) != key || e.Type == clientv3.EventTypePut && !bytes.Equal(e.Kv.Value, w.now) || !bytes.Equal(before, w.before) {
			t.Fatalf("event %d of %q: %v", i, key, e)
		}
	}
}

// pending are events of a response that next has not returned yet.
type pending struct {
	from clientv3.WatchChan
	rest []*clientv3.Event
}

func (p *pending) next(t *testing.T) *clientv3.Event {
	t.Helper()
	late := time.After(patience)
	for len(p.rest) == 0 {
		select {
		case r, open := <-p.from:
			if !open || r.Err() != nil {
				t.Fatalf("the watch ended: %v", r.Err())
			}
			p.rest = r.Events
		case <-late:
			t.Fatal("no event")
		}
	}
	e := p.rest[0]
	p.rest = p.rest[1:]
	return e
}
