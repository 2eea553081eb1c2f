// Package ipam hands out the addresses of one node's pod CIDRs and remembers on
// disk who has them.
//
// An allocation is one file, written before Allocate returns and gone when
// Release returns; nothing is cached that the files do not say. A file that a
// power cut left empty or torn is reported by Load under its name, which tells
// whose it was, so that the caller can look at the pod itself. The files are
// not synced: a power cut ends every pod, and with them every allocation.
//
// Freed addresses are not given again before all others had their turn, so that
// nobody's cached address leads to another pod soon; the turn survives a restart.
package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// ErrFull is the cause when all addresses of a prefix are in use.
var ErrFull = errors.New("every address is in use")

// Key names one interface of one sandbox.
type Key struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
}

// Port is a port of the node that leads to a port of the pod.
type Port struct {
	// Protocol is tcp, udp or sctp.
	Protocol string `json:"protocol"`
	HostPort uint16 `json:"hostPort"`
	// HostIP limits the mapping to one address of the node; the zero value is any.
	HostIP        netip.Addr `json:"hostIP,omitzero"`
	ContainerPort uint16     `json:"containerPort"`
}

// Allocation is all that has to be known to take an interface away again.
type Allocation struct {
	Key
	// NetNS is the path of the pod's network namespace.
	NetNS string `json:"netns"`
	// HostVeth is the node's end of the pod's cable.
	HostVeth string `json:"hostVeth"`
	// Addresses are the pod's, one a family, with the length of the node's prefix.
	Addresses []netip.Prefix `json:"addresses"`
	Ports     []Port         `json:"ports,omitempty"`
	Created   time.Time      `json:"created"`
}

// Ledger is the set of allocations of one node. All methods may be called at
// the same time, but those for one Key only one after the other.
type Ledger struct {
	store store

	mu    sync.Mutex
	pools []*pool
	byKey map[Key]Allocation
	owner map[netip.Addr]Key
}

// New returns a ledger that keeps its files in dir. It does no I/O.
func New(dir string) *Ledger {
	return &Ledger{store: store{dir: dir}, byKey: map[Key]Allocation{}, owner: map[netip.Addr]Key{}}
}

// Load reads the allocations of an earlier process, once, before all else. It
// returns the keys whose record cannot be read; they hold no address until the
// caller Adopts or Releases them.
func (l *Ledger) Load() (damaged []Key, err error) {
	records, damaged, err := l.store.load()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range records {
		if other := l.taken(a); other != (Key{}) {
			damaged = append(damaged, a.Key)
			continue
		}
		l.insert(a)
	}
	return damaged, nil
}

// Use sets the node's prefixes: one, or one for IPv4 and one for IPv6. The first
// address of each is the node's own.
func (l *Ledger) Use(prefixes []netip.Prefix) error {
	pools, err := newPools(prefixes)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, last := range l.store.cursor() {
		for _, p := range pools {
			p.resumeAfter(last)
		}
	}
	l.pools = pools
	return nil
}

// Prefixes returns each prefix with the node's own address in it.
func (l *Ledger) Prefixes() []netip.Prefix {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []netip.Prefix
	for _, p := range l.pools {
		out = append(out, netip.PrefixFrom(p.gateway, p.prefix.Bits()))
	}
	return out
}

// Gateways returns the node's own address in each prefix.
func (l *Ledger) Gateways() []netip.Addr {
	var out []netip.Addr
	for _, p := range l.Prefixes() {
		out = append(out, p.Addr())
	}
	return out
}

// Allocate gives a an address from every prefix and puts it on disk. Nothing is
// held when it fails. It is an error when a's key has an allocation already.
func (l *Ledger) Allocate(a Allocation) (Allocation, error) {
	a, err := l.reserve(a)
	if err != nil {
		return Allocation{}, err
	}
	if err := errors.Join(l.store.save(a), l.store.saveCursor(a.Addresses)); err != nil {
		return Allocation{}, errors.Join(err, l.Release(a.Key))
	}
	return a, nil
}

func (l *Ledger) reserve(a Allocation) (Allocation, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, is := l.byKey[a.Key]; is {
		return a, fmt.Errorf("sandbox %s has addresses for %s already", a.ContainerID, a.IfName)
	}
	if len(l.pools) == 0 {
		return a, errors.New("the node has no pod CIDR")
	}
	a.Addresses = nil
	for _, p := range l.pools {
		addr, err := p.next(l.owner)
		if err != nil {
			return a, err
		}
		a.Addresses = append(a.Addresses, netip.PrefixFrom(addr, p.prefix.Bits()))
	}
	l.insert(a)
	return a, nil
}

// Adopt records an allocation that a pod was found to have, in place of what
// its key had. It is an error when another key has one of the addresses.
func (l *Ledger) Adopt(a Allocation) error {
	l.mu.Lock()
	if other := l.taken(a); other != (Key{}) {
		l.mu.Unlock()
		return fmt.Errorf("adopt addresses %v of sandbox %s: sandbox %s has one of them", a.Addresses, a.ContainerID, other.ContainerID)
	}
	l.remove(a.Key)
	l.insert(a)
	l.mu.Unlock()
	return l.store.save(a)
}

// Release takes back what k has; nothing is a success.
func (l *Ledger) Release(k Key) error {
	if err := l.store.remove(k); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(k)
	return nil
}

// Get returns the allocation of k.
func (l *Ledger) Get(k Key) (Allocation, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a, is := l.byKey[k]
	return a, is
}

// All returns every allocation, the newest first.
func (l *Ledger) All() []Allocation {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]Allocation, 0, len(l.byKey))
	for _, a := range l.byKey {
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b Allocation) int { return b.Created.Compare(a.Created) })
	return all
}

// taken returns the key of another allocation with an address of a.
func (l *Ledger) taken(a Allocation) Key {
	for _, p := range a.Addresses {
		if k, is := l.owner[p.Addr()]; is && k != a.Key {
			return k
		}
	}
	return Key{}
}

func (l *Ledger) insert(a Allocation) {
	l.byKey[a.Key] = a
	for _, p := range a.Addresses {
		l.owner[p.Addr()] = a.Key
	}
}

func (l *Ledger) remove(k Key) {
	for _, p := range l.byKey[k].Addresses {
		delete(l.owner, p.Addr())
	}
	delete(l.byKey, k)
}
