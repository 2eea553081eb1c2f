package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// load is what an API server does to its store, as far as it matters for speed: guarded creates, updates and deletes of
// values of one size, point reads, lists of 500, and watches of prefixes open meanwhile.
type load struct {
	clients, operations, size, watches int
	rounds                             int
	idle                               time.Duration // for which an idle store is looked at
}

// figures is what was measured of one store.
type figures struct {
	name     string
	phases   []phase
	perWrite float64       // bytes that the store has handed to the disk, for each acknowledged write
	idle     float64       // CPU milliseconds a second of the store's process with all clients connected and nothing to do
	sync     time.Duration // a bare fdatasync beside the store's file, just before the load; of a store in this process alone
}

// phase is the one of that name, which all stores have.
func (f figures) phase(name string) phase {
	return f.phases[slices.IndexFunc(f.phases, func(p phase) bool { return p.name == name })]
}

// phase is one kind of operation.
type phase struct {
	name      string
	perSecond float64
	p50, p99  time.Duration
	slowest   time.Duration
}

// connections is how many connections the clients share, as the resources of an API server do.
const connections = 8

// singleClient is the phase in which writes do not share transactions.
const singleClient = "create, 1 client"

// resources is over how many resources the keys are spread.
const resources = 16

// runner is a load at work on one store.
type runner struct {
	load
	conns     []*clientv3.Client
	revisions []int64 // of the keys, by number
	events    atomic.Int64
	value     string
}

func storeCommand(ctx context.Context, args []string) error {
	var l load
	var baseline string
	flags := flag.NewFlagSet("bench store", flag.ContinueOnError)
	flags.StringVar(&baseline, "baseline", "", "the directory made by scripts/baseline/build")
	flags.IntVar(&l.clients, "clients", 32, "concurrent clients")
	flags.IntVar(&l.operations, "operations", 10000, "operations of each phase; lists are a fiftieth")
	flags.IntVar(&l.size, "size", 1024, "bytes of a value")
	flags.IntVar(&l.watches, "watches", 64, "watches open during the writes")
	flags.IntVar(&l.rounds, "rounds", 5, "rounds, of which the medians are taken")
	flags.DurationVar(&l.idle, "idle", 10*time.Second, "how long each store is looked at with nothing to do")
	if err := flags.Parse(args); err != nil {
		return err
	}
	return compareStores(ctx, baseline, l)
}

// connect returns clients of the store at endpoint, and what closes them.
func connect(endpoint string) (clients []*clientv3.Client, done func(), err error) {
	done = func() {
		for _, c := range clients {
			_ = c.Close()
		}
	}
	for range connections {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 10 * time.Second})
		if err != nil {
			done()
			return nil, nil, err
		}
		clients = append(clients, c)
	}
	return clients, done, nil
}

// measureStore runs every phase through the clients of a store that is the process pid.
func (l load) measureStore(ctx context.Context, name string, clients []*clientv3.Client, pid int) (figures, error) {
	r := &runner{load: l, conns: clients, revisions: make([]int64, l.operations)}
	random := make([]byte, l.size/2)
	_, _ = rand.Read(random)
	r.value = fmt.Sprintf("%x", random)
	dir := fmt.Sprintf("/proc/%d", pid)
	before, err := sample(dir)
	if err != nil {
		return figures{}, err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	r.watch(watching)
	phases, err := r.run(ctx)
	if err != nil {
		return figures{}, err
	}
	after, err := sample(dir)
	if err != nil {
		return figures{}, err
	}
	f := figures{name: name, phases: phases, perWrite: float64(after.written-before.written) / float64(3*l.operations+r.singles())}
	f.idle, err = l.lookIdle(ctx, dir)
	return f, err
}

// settle is how long a store may take to end what the load has left it to do.
const settle = 5 * time.Second

// lookIdle is what the process uses of a processor when nobody wants anything.
func (l load) lookIdle(ctx context.Context, dir string) (float64, error) {
	var cpu [2]float64
	for i, wait := range []time.Duration{settle, l.idle} {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(wait):
		}
		p, err := sample(dir)
		if err != nil {
			return 0, err
		}
		cpu[i] = p.cpu
	}
	return 1000 * (cpu[1] - cpu[0]) / l.idle.Seconds(), nil
}

// singles is how many writes the single client makes.
func (r *runner) singles() int { return r.operations / 20 }

// watch opens the watches, each of another resource, as an API server's: most have nothing to see.
func (r *runner) watch(ctx context.Context) {
	for w := range r.watches {
		ch := r.conn(w).Watch(ctx, resource(w), clientv3.WithPrefix(), clientv3.WithPrevKV())
		go func() {
			for response := range ch {
				r.events.Add(int64(len(response.Events)))
			}
		}()
	}
}

func (r *runner) run(ctx context.Context) ([]phase, error) {
	var phases []phase
	for _, p := range []struct {
		name           string
		clients, count int
		do             func(context.Context, int) error
	}{
		{singleClient, 1, r.singles(), func(ctx context.Context, i int) error { return r.guarded(ctx, i, fmt.Sprint("single-", i), 0, nil) }},
		{"create", r.clients, r.operations, r.create},
		{"update", r.clients, r.operations, r.update},
		{"get", r.clients, r.operations, r.get},
		{"list 500", 4, r.operations / 50, r.list},
		{"delete", r.clients, r.operations, r.remove},
	} {
		result, err := measurePhase(ctx, p.name, p.clients, p.count, p.do)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		phases = append(phases, result)
	}
	return phases, r.checkEvents(ctx)
}

// checkEvents waits until the watches have seen the 3 writes to every key of their resources.
func (r *runner) checkEvents(ctx context.Context) error {
	want := int64(0)
	for i := range r.operations {
		if i%resources < r.watches {
			want += 3
		}
	}
	for range 100 {
		if r.events.Load() >= want {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return fmt.Errorf("the watches have seen %d events of %d", r.events.Load(), want)
}

// measurePhase spreads count calls over clients.
func measurePhase(ctx context.Context, name string, clients, count int, do func(context.Context, int) error) (phase, error) {
	took := make([]time.Duration, count)
	var next atomic.Int64
	var wg sync.WaitGroup
	failures := make(chan error, clients)
	began := time.Now()
	for range clients {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < count; i = int(next.Add(1)) - 1 {
				start := time.Now()
				if err := do(ctx, i); err != nil {
					failures <- err
					return
				}
				took[i] = time.Since(start)
			}
		})
	}
	wg.Wait()
	select {
	case err := <-failures:
		return phase{}, err
	default:
	}
	perSecond := float64(count) / time.Since(began).Seconds()
	slices.Sort(took)
	at := func(q float64) time.Duration { return took[int(q*float64(count-1))] }
	return phase{name, perSecond, at(0.5), at(0.99), at(1)}, nil
}

func (r *runner) conn(i int) *clientv3.Client { return r.conns[i%len(r.conns)] }

func resource(i int) string { return fmt.Sprintf("/registry/bench%02d/", i) }

func key(i int) string {
	return fmt.Sprintf("%snamespace-%d/name-%d", resource(i%resources), i%7, i)
}

var errConflict = errors.New("the store has another revision than it gave out")

// guarded writes a key, as the operation i, if it is at revision, and tells the new one to keep.
func (r *runner) guarded(ctx context.Context, i int, key string, revision int64, keep *int64) error {
	response, err := r.conn(i).Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).
		Then(clientv3.OpPut(key, r.value)).Else(clientv3.OpGet(key)).Commit()
	if err == nil && !response.Succeeded {
		err = errConflict
	}
	if err == nil && keep != nil {
		*keep = response.Header.Revision
	}
	return err
}

func (r *runner) create(ctx context.Context, i int) error {
	return r.guarded(ctx, i, key(i), 0, &r.revisions[i])
}

func (r *runner) update(ctx context.Context, i int) error {
	return r.guarded(ctx, i, key(i), r.revisions[i], &r.revisions[i])
}

func (r *runner) get(ctx context.Context, i int) error {
	response, err := r.conn(i).Get(ctx, key(i))
	if err == nil && (len(response.Kvs) != 1 || response.Kvs[0].ModRevision != r.revisions[i]) {
		err = errConflict
	}
	return err
}

func (r *runner) list(ctx context.Context, i int) error {
	response, err := r.conn(i).Get(ctx, resource(i%resources), clientv3.WithPrefix(), clientv3.WithLimit(500))
	if err == nil && len(response.Kvs) != min(500, r.operations/resources) && len(response.Kvs) != min(500, r.operations/resources+1) {
		err = fmt.Errorf("%d keys", len(response.Kvs))
	}
	return err
}

func (r *runner) remove(ctx context.Context, i int) error {
	key := key(i)
	response, err := r.conn(i).Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", r.revisions[i])).
		Then(clientv3.OpDelete(key)).Else(clientv3.OpGet(key)).Commit()
	if err == nil && !response.Succeeded {
		err = errConflict
	}
	return err
}
