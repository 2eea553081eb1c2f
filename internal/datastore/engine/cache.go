package engine

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// cache keeps the values last used, by revision, up to a number of bytes. Values are never changed after they are in it.
type cache struct {
	mu     sync.Mutex
	values *simplelru.LRU[int64, []byte]
	bytes  int
	limit  int
}

// entryBytes is what an entry takes besides its value.
const entryBytes = 128

func newCache(limit int) *cache {
	c := &cache{limit: limit}
	// The number of entries is bounded by their size alone. The constructor only refuses a size below one.
	c.values, _ = simplelru.NewLRU(limit/entryBytes+1, func(_ int64, value []byte) { c.bytes -= len(value) + entryBytes })
	return c
}

func (c *cache) get(revision int64) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.values.Get(revision)
}

// put leaves out a value that would push most others out.
func (c *cache) put(revision int64, value []byte) {
	if len(value) > c.limit/8 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.values.Contains(revision) {
		return
	}
	c.bytes += len(value) + entryBytes
	c.values.Add(revision, value)
	for c.bytes > c.limit {
		c.values.RemoveOldest()
	}
}

func (c *cache) drop(revision int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.values.Remove(revision)
}
