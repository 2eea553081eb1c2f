package contract

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/client/v3/kubernetes"
)

const (
	randomOperations = 100000
	// roundOperations are made by all workers together between two times when everything is compared.
	roundOperations = 2000
	workers         = 32
	// Each worker has keys of its own, so that it knows what its writes must come to; they are spread over groups, so that
	// lists are of several workers' keys.
	workerKeys = 16
	groups     = 5
	// A compaction is one of so many operations on average.
	compactions = 1500
)

// chaos is the random operations on a store and the model of what must come of them.
type chaos struct {
	*client
	model *model
	start int64 // the first revision that the model knows of

	// All writes up to the revision settled are in the model.
	settled atomic.Int64
	// asked is the highest revision that a compaction was asked for, acknowledged the highest that one has answered. A read
	// between them may or may not succeed.
	asked, acknowledged atomic.Int64
	compacting          sync.Mutex

	mu    sync.Mutex
	reads []read // of the latest revision, to be compared when that is settled
}

// read is an answer to a list.
type read struct {
	prefix   string
	revision int64 // as the answer says
	found    kubernetes.ListResponse
	limit    int64
}

func testRandom(t *testing.T, s Store) {
	operations := s.Operations
	if operations == 0 {
		operations = randomOperations
	}
	c := &chaos{client: connect(t, s, "random"), model: newModel(!s.Kine)}
	start := c.put(t, "start", "x", 0)
	c.model.write(c.prefix+"start", []byte("x"), start)
	c.start = start
	c.settled.Store(start)
	audience := newAudience(t, c)
	compared := 1
	for round := 0; round*roundOperations < operations; round++ {
		audience.begin(t, rand.New(rand.NewPCG(s.Seed, uint64(round))))
		failures := make(chan error, workers)
		var wg sync.WaitGroup
		for w := range workers {
			r := rand.New(rand.NewPCG(s.Seed, uint64(round*workers+w+1)))
			wg.Go(func() {
				for range roundOperations / workers {
					if err := c.operate(t, r, w); err != nil {
						failures <- fmt.Errorf("round %d: %w", round, err)
						return
					}
				}
			})
		}
		wg.Wait()
		select {
		case err := <-failures:
			t.Fatal(err)
		default:
		}
		events, err := c.model.sorted(compared, !s.Kine)
		if err != nil {
			t.Fatal(err)
		}
		compared += len(events)
		if len(events) > 0 {
			c.settled.Store(events[len(events)-1].Kv.ModRevision)
		}
		c.compareReads(t)
		audience.compare(t, events)
	}
	t.Logf("%d operations, %d of them writes, compacted at %d of %d; %s", operations, compared, c.acknowledged.Load(), c.settled.Load(), audience)
}

// operate does one thing.
func (c *chaos) operate(t *testing.T, r *rand.Rand, worker int) error {
	if !c.store.Kine && r.IntN(compactions) == 0 {
		return c.compactSome(t, r)
	}
	if n := r.IntN(100); n < 60 {
		return c.writeSome(t, r, worker)
	} else if n < 75 {
		return c.getOwn(t, r, worker)
	} else if n < 85 {
		return c.listLatest(t, r)
	}
	return c.listPast(t, r)
}

func (c *chaos) key(r *rand.Rand, worker int) string {
	n := r.IntN(workerKeys)
	return fmt.Sprintf("g%d/%d-%d", n%groups, worker, n)
}

// group is a prefix of keys of all workers, or of one worker, or of all there is.
func (c *chaos) group(r *rand.Rand) string {
	switch n := r.IntN(groups + 2); n {
	case groups:
		return c.prefix
	case groups + 1:
		return c.prefix + fmt.Sprintf("g%d/%d-", r.IntN(groups), r.IntN(workers))
	default:
		return c.prefix + fmt.Sprintf("g%d/", n)
	}
}

// writeSome creates, changes or deletes a key of the worker's own, sometimes with a wrong guard.
func (c *chaos) writeSome(t *testing.T, r *rand.Rand, worker int) error {
	key := c.key(r, worker)
	is := int64(0)
	if kv := c.model.latest(c.prefix + key); kv != nil {
		is = kv.ModRevision
	}
	guard := is
	if r.IntN(8) == 0 {
		guard = max(0, is+int64(r.IntN(5))-2)
	}
	if guard > 0 && r.IntN(3) == 0 {
		got, err := c.tryRemove(t, key, guard)
		if err == nil && got.Succeeded && guard == is {
			c.model.write(c.prefix+key, nil, got.Revision)
		}
		if is == 0 && c.store.Kine {
			return err
		}
		return c.judge(key, guard, is, got.Succeeded, got.Revision, err)
	}
	value := fmt.Appendf(nil, "%s-%x", key, r.Uint64())
	if r.IntN(10) == 0 {
		value = []byte{}
	}
	got, err := c.tryPut(t, key, string(value), guard)
	if err == nil && got.Succeeded && guard == is {
		c.model.write(c.prefix+key, value, got.Revision)
	}
	return c.judge(key, guard, is, got.Succeeded, got.Revision, err)
}

// judge says whether a guarded write that found the key at revision is should have had the answer it got.
func (c *chaos) judge(key string, guard, is int64, succeeded bool, revision int64, err error) error {
	if err != nil {
		return fmt.Errorf("write %s at %d: %w", key, is, err)
	}
	if c.store.Kine && !succeeded {
		return nil
	}
	if succeeded != (guard == is) || revision <= is && succeeded || revision < is {
		return fmt.Errorf("write %s if at %d, which it is at %d: %v, revision %d", key, guard, is, succeeded, revision)
	}
	return nil
}
