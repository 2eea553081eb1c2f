package engine

import (
	"slices"
	"sort"

	"github.com/google/btree"
)

// version is what the index knows of one revision of a key. A deletion is one with count 0.
type version struct {
	revision, created int64
	count             int32 // how many times the key was written since created, as etcd's version
	lease             int32 // seconds to live, 0 for ever
}

func (v version) deleted() bool { return v.count == 0 }

// node is a key with its versions in order, the ones still in the file.
type node struct {
	key      string
	versions []version
}

func (n *node) latest() version { return n.versions[len(n.versions)-1] }

// at is the version that a reader at revision sees; ok is false when it sees none.
func (n *node) at(revision int64) (v version, ok bool) {
	i := sort.Search(len(n.versions), func(i int) bool { return n.versions[i].revision > revision })
	if i == 0 || n.versions[i-1].deleted() {
		return version{}, false
	}
	return n.versions[i-1], true
}

// before is the version that the one of revision replaced.
func (n *node) before(revision int64) (v version, ok bool) {
	return n.at(revision - 1)
}

// garbage is a version that no reader can ask for once the compacted revision has reached since.
type garbage struct {
	node            *node
	revision, since int64
}

// index holds the keys in order, and what has become garbage in the order in which it did.
type index struct {
	keys    *btree.BTreeG[*node]
	garbage queue[garbage]
}

// branching is the degree of the tree of keys.
const branching = 32

func newIndex() *index {
	return &index{keys: btree.NewG(branching, func(a, b *node) bool { return a.key < b.key })}
}

func (x *index) get(key string) (*node, bool) {
	return x.keys.Get(&node{key: key})
}

// add appends a version, which is newer than all others, to its key.
func (x *index) add(key string, v version) {
	n, _ := x.get(key)
	x.addTo(n, key, v)
}

// addTo is add for a key that was looked up: n is nil when it was not there. It returns where the key is now.
func (x *index) addTo(n *node, key string, v version) *node {
	if n == nil {
		n = &node{key: key}
		x.keys.ReplaceOrInsert(n)
	} else if !n.latest().deleted() {
		x.garbage.push(garbage{n, n.latest().revision, v.revision})
	}
	n.versions = append(n.versions, v)
	if v.deleted() {
		x.garbage.push(garbage{n, v.revision, v.revision})
	}
	return n
}

// drop forgets a version that was garbage, and the key with the last one.
func (x *index) drop(g garbage) {
	n := g.node
	if len(n.versions) == 1 {
		x.keys.Delete(n)
		return
	}
	n.versions = n.versions[1:] // garbage goes in order, so it is always the first
	if len(n.versions) == 1 {
		n.versions = slices.Clone(n.versions) // lets go of the room that many took
	}
}

// ascend calls f for the keys of a range, in order, until it returns false. See inRange for what the range means.
func (x *index) ascend(key, end string, f func(*node) bool) {
	switch {
	case key == "":
		x.keys.Ascend(f)
	case end == "":
		if n, found := x.get(key); found {
			f(n)
		}
	default:
		x.keys.AscendRange(&node{key: key}, &node{key: end}, f)
	}
}

// inRange reports whether k is key when there is no end, else whether it is from key up to, not including, end. An empty
// key is every key. That is how kine hands on etcd's ranges.
func inRange(k, key, end string) bool {
	switch {
	case key == "":
		return true
	case end == "":
		return k == key
	}
	return k >= key && k < end
}

// queue is a first-in first-out list whose memory follows its length.
type queue[T any] struct {
	items []T
	head  int
}

func (q *queue[T]) push(item T) { q.items = append(q.items, item) }

func (q *queue[T]) len() int { return len(q.items) - q.head }

func (q *queue[T]) peek(i int) T { return q.items[q.head+i] }

// pop removes the first n.
func (q *queue[T]) pop(n int) {
	clear(q.items[q.head : q.head+n])
	q.head += n
	if q.head > len(q.items)/2 {
		q.items = slices.Clone(q.items[q.head:])
		q.head = 0
	}
}
