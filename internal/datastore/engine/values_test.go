package engine

import (
	"bytes"
	"fmt"
	"testing"
)

// TestValuesAreOwned fails when the driver comes to use the memory of a value again, or to change what it was given.
func TestValuesAreOwned(t *testing.T) {
	e := open(t, tempPath(t))
	want := map[int64][]byte{}
	var revisions []int64
	for i := range 200 {
		value := bytes.Repeat([]byte{byte(i)}, i*50)
		revision, err := e.Create(t.Context(), fmt.Sprint("/key/", i), value, 0)
		if err != nil {
			t.Fatal(err)
		}
		revisions = append(revisions, revision)
		want[revision] = value
	}
	got := map[int64][]byte{}
	for range 2 { // a second statement may not write into what the first one gave out
		before := got
		got = map[int64][]byte{}
		if err := e.file.values(revisions, func(revision int64, value []byte) { got[revision] = value }); err != nil {
			t.Fatal(err)
		}
		for _, values := range []map[int64][]byte{before, got} {
			for revision, value := range values {
				if !bytes.Equal(value, want[revision]) {
					t.Fatalf("revision %d has %d bytes of something else", revision, len(value))
				}
			}
		}
		for _, value := range before {
			clear(value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("read %d values of %d", len(got), len(want))
	}
	for revision, value := range got {
		if !bytes.Equal(value, want[revision]) {
			t.Fatalf("revision %d changed with a value read before", revision)
		}
	}
}

func TestListsLeaveTheCacheAlone(t *testing.T) {
	e := open(t, tempPath(t))
	for i := range 20 {
		put(t, e, fmt.Sprintf("/key/%02d", i), "value")
	}
	e.cache = newCache(defaultCacheBytes)
	if _, kvs, err := e.List(t.Context(), "/key/", "/key0", 0, 0, false); err != nil || len(kvs) != 20 {
		t.Fatalf("listed %d keys: %v", len(kvs), err)
	}
	if n := e.cache.values.Len(); n != 0 {
		t.Errorf("a list put %d values into the cache", n)
	}
	if _, kv, err := e.Get(t.Context(), "/key/07", 0, false); err != nil || string(kv.Value) != "value" {
		t.Fatalf("got %v: %v", kv, err)
	}
	if n := e.cache.values.Len(); n != 1 {
		t.Errorf("after a get there are %d values in the cache", n)
	}
}

func TestReplacedValuesLeaveTheCache(t *testing.T) {
	e := open(t, tempPath(t))
	for i := range 30 {
		put(t, e, "/changed", fmt.Sprint("value ", i))
	}
	gone := put(t, e, "/gone", "value")
	del(t, e, "/gone")
	if n := e.cache.values.Len(); n != 1 {
		t.Errorf("for one key there are %d values in the cache", n)
	}
	if _, kv, err := e.Get(t.Context(), "/gone", gone, false); err != nil || string(kv.Value) != "value" {
		t.Errorf("got %v at an earlier revision: %v", kv, err)
	}
}
