package contract

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// model is a store as one would write it down: every version that any key ever had.
type model struct {
	counts bool // versions

	mu       sync.Mutex
	versions map[string][]*mvccpb.KeyValue // in order; deletions have no revision of creation
	events   []*clientv3.Event             // in the order of acknowledgements
}

func newModel(counts bool) *model {
	return &model{counts: counts, versions: map[string][]*mvccpb.KeyValue{}}
}

// latest is what a key is, nil when it is not there.
func (m *model) latest(key string) *mvccpb.KeyValue {
	m.mu.Lock()
	defer m.mu.Unlock()
	return live(m.versions[key])
}

func live(versions []*mvccpb.KeyValue) *mvccpb.KeyValue {
	if len(versions) == 0 || versions[len(versions)-1].CreateRevision == 0 {
		return nil
	}
	return versions[len(versions)-1]
}

// write notes a write that got revision; a nil value is a deletion.
func (m *model) write(key string, value []byte, revision int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := live(m.versions[key])
	kv := &mvccpb.KeyValue{Key: []byte(key), Value: value, ModRevision: revision, CreateRevision: revision, Version: 1}
	event := &clientv3.Event{Type: clientv3.EventTypePut, Kv: kv, PrevKv: old}
	switch {
	case value == nil:
		event.Type = clientv3.EventTypeDelete
		kv.Version, kv.CreateRevision = 0, 0
	case old != nil:
		kv.CreateRevision, kv.Version = old.CreateRevision, old.Version+1
	}
	if !m.counts {
		kv.Version = 0
	}
	m.versions[key] = append(m.versions[key], kv)
	m.events = append(m.events, event)
}

// at is what a reader of a prefix sees at a revision, in order.
func (m *model) at(prefix string, revision int64) []*mvccpb.KeyValue {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*mvccpb.KeyValue
	for key, versions := range m.versions {
		if !strings.HasPrefix(key, prefix) {
			continue
		}
		n := sort.Search(len(versions), func(i int) bool { return versions[i].ModRevision > revision })
		if kv := live(versions[:n]); kv != nil {
			all = append(all, kv)
		}
	}
	slices.SortFunc(all, func(a, b *mvccpb.KeyValue) int { return strings.Compare(string(a.Key), string(b.Key)) })
	return all
}

// sorted puts the events since the last call in order and returns them, or says which revision is wrong. No write may be
// under way.
func (m *model) sorted(from int, dense bool) ([]*clientv3.Event, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	events := m.events[from:]
	slices.SortFunc(events, func(a, b *clientv3.Event) int { return int(a.Kv.ModRevision - b.Kv.ModRevision) })
	for i := max(from, 1); i < len(m.events); i++ {
		before, now := m.events[i-1].Kv.ModRevision, m.events[i].Kv.ModRevision
		if now <= before || dense && now != before+1 {
			return nil, fmt.Errorf("revision %d comes after %d", now, before)
		}
	}
	return events, nil
}

// same compares keys and values with the model's.
func same(got, want []*mvccpb.KeyValue) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d keys, want %d", len(got), len(want))
	}
	for i := range got {
		if describeKV(got[i]) != describeKV(want[i]) || string(got[i].Value) != string(want[i].Value) {
			return fmt.Errorf("%s, want %s", describeKV(got[i]), describeKV(want[i]))
		}
	}
	return nil
}
