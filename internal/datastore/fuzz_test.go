package datastore_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/clusterd/clusterd/internal/datastore/contract"
)

// FuzzKeysAndValues writes and reads any key and value, and reads them again after a restart.
func FuzzKeysAndValues(f *testing.F) {
	for _, a := range contract.Awkward {
		f.Add([]byte(a.Key), a.Value)
	}
	path := filepath.Join(f.TempDir(), "state.db")
	n := 0
	f.Fuzz(func(t *testing.T, name, value []byte) {
		n++
		key := fmt.Sprintf("/registry/fuzz/%d/%s", n, name)
		s, stop := run(t, path)
		c, err := s.Client()
		if err != nil {
			t.Fatal(err)
		}
		contract.RoundTrip(t, c, key, value)
		r, err := c.Kubernetes.OptimisticPut(t.Context(), key, value, 0, kubernetes.PutOptions{})
		if err != nil || !r.Succeeded {
			t.Fatalf("create %q again: %v, %v", key, r, err)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		s, stop = run(t, path)
		if c, err = s.Client(); err != nil {
			t.Fatal(err)
		}
		got, err := c.KV.Get(t.Context(), key)
		if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Key) != key || !bytes.Equal(got.Kvs[0].Value, value) || got.Kvs[0].ModRevision != r.Revision {
			t.Fatalf("%q after a restart: %v, %v", key, got, err)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	})
}
