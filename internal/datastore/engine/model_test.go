package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sort"
	"testing"

	"github.com/k3s-io/kine/pkg/server"
)

// model is the store as one would write it down: all that ever happened.
type model struct {
	events    []*server.Event
	compacted int64
}

func (m *model) current() int64 { return int64(len(m.events)) }

// at is what a reader of a revision sees, by key.
func (m *model) at(revision int64) map[string]*server.KeyValue {
	kvs := map[string]*server.KeyValue{}
	for _, e := range m.events[:revision] {
		if e.Delete {
			delete(kvs, e.KV.Key)
		} else {
			kvs[e.KV.Key] = e.KV
		}
	}
	return kvs
}

// TestAgainstModel does random things, restarts among them, to a store and to a model of it.
func TestAgainstModel(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			path := tempPath(t)
			e := open(t, path)
			m := &model{events: []*server.Event{{Create: true, KV: &server.KeyValue{
				Key: healthKey, Value: []byte(healthValue), CreateRevision: 1, ModRevision: 1, Version: 1,
			}}}}
			w := subscribe(t, e, "/k/", "/k0", 0)
			watched := int64(1)
			for range 400 {
				switch n := r.IntN(100); {
				case n < 80:
					change(t, r, e, m)
				case n < 84 && m.compacted < m.current():
					m.compacted += 1 + r.Int64N(m.current()-m.compacted)
					if _, err := e.Compact(t.Context(), m.compacted); err != nil {
						t.Fatal(err)
					}
				case n < 86:
					e.Close()
					e = open(t, path)
					// A watch is resumed from where it was, if that is still there.
					watched = max(watched, m.compacted)
					w = subscribe(t, e, "/k/", "/k0", watched+1)
				case n < 93:
					w, watched = compareEvents(t, w, m, watched)
				default:
					compareReads(t, r, e, m)
				}
			}
			compareReads(t, r, e, m)
		})
	}
}

// change writes to a random key: with the right revision, or with a wrong one.
func change(t *testing.T, r *rand.Rand, e *Engine, m *model) {
	t.Helper()
	key := fmt.Sprintf("/k/%d", r.IntN(12))
	value := fmt.Sprintf("value %d", m.current())
	old := m.at(m.current())[key]
	next := m.current() + 1
	kv := &server.KeyValue{Key: key, Value: []byte(value), ModRevision: next, CreateRevision: next, Version: 1}
	var revision int64
	var ok bool
	var err error
	switch {
	case old == nil:
		revision, err = e.Create(t.Context(), key, kv.Value, 0)
		ok = true
	case r.IntN(10) == 0:
		revision, _, ok, err = e.Update(t.Context(), key, kv.Value, old.ModRevision+1, 0)
		if ok || err != nil || revision != m.current() {
			t.Fatalf("a wrong update: %d, %v, %v", revision, ok, err)
		}
		return
	case r.IntN(3) == 0:
		revision, _, ok, err = e.Delete(t.Context(), key, old.ModRevision)
		kv = &server.KeyValue{Key: key, ModRevision: next}
	default:
		revision, _, ok, err = e.Update(t.Context(), key, kv.Value, old.ModRevision, 0)
		kv.CreateRevision, kv.Version = old.CreateRevision, old.Version+1
	}
	if err != nil || !ok || revision != next {
		t.Fatalf("write of revision %d: %d, %v, %v", next, revision, ok, err)
	}
	m.events = append(m.events, &server.Event{Create: old == nil, Delete: kv.Value == nil, KV: kv, PrevKV: old})
}

// compareReads reads everything at a random revision.
func compareReads(t *testing.T, r *rand.Rand, e *Engine, m *model) {
	t.Helper()
	revision := 1 + r.Int64N(m.current())
	_, kvs, err := e.List(t.Context(), "/k/", "/k0", 0, revision, false)
	if revision < m.compacted {
		if !errors.Is(err, server.ErrCompacted) {
			t.Fatalf("list at %d, compacted at %d: %v", revision, m.compacted, err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	var want []*server.KeyValue
	for key, kv := range m.at(revision) {
		if key != healthKey {
			want = append(want, kv)
		}
	}
	sort.Slice(want, func(i, j int) bool { return want[i].Key < want[j].Key })
	if len(kvs) != len(want) {
		t.Fatalf("at %d of %d: %d keys, want %d", revision, m.current(), len(kvs), len(want))
	}
	for i, kv := range kvs {
		if fmt.Sprint(*kv) != fmt.Sprint(*want[i]) {
			t.Fatalf("at %d: %v, want %v", revision, *kv, *want[i])
		}
	}
}

// compareEvents takes what the watch has up to now and returns how far it has come. A watch that was too late for a compaction
// is made anew.
func compareEvents(t *testing.T, w *Watch, m *model, from int64) (*Watch, int64) {
	t.Helper()
	for from < m.current() {
		events, revision, err := w.Next()
		if errors.Is(err, server.ErrCompacted) && from < m.compacted {
			return subscribe(t, w.e, "/k/", "/k0", m.compacted+1), m.compacted
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, event := range events {
			from++
			want := *m.events[from-1]
			if describe(event) != describe(&want) {
				t.Fatalf("event %s, want %s", describe(event), describe(&want))
			}
		}
		if from != revision {
			t.Fatalf("%d events are missing", revision-from)
		}
	}
	return w, from
}
