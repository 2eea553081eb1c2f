package network

import (
	"sync"

	"github.com/clusterd/clusterd/agent/network/ipam"
)

// keyLocks lets one request a key work at a time, and all keys side by side.
type keyLocks struct {
	mu   sync.Mutex
	held map[ipam.Key]*keyLock
}

type keyLock struct {
	mu    sync.Mutex
	users int
}

// lock waits for k and returns what gives it back.
func (l *keyLocks) lock(k ipam.Key) (unlock func()) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[ipam.Key]*keyLock{}
	}
	kl := l.held[k]
	if kl == nil {
		kl = &keyLock{}
		l.held[k] = kl
	}
	kl.users++
	l.mu.Unlock()
	kl.mu.Lock()
	return func() { l.unlock(k, kl) }
}

func (l *keyLocks) unlock(k ipam.Key, kl *keyLock) {
	kl.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if kl.users--; kl.users == 0 {
		delete(l.held, k)
	}
}

// pendingNetNS counts the namespaces that waiting requests speak of.
type pendingNetNS struct {
	mu    sync.Mutex
	paths map[string]int
}

func (p *pendingNetNS) add(path string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paths == nil {
		p.paths = map[string]int{}
	}
	p.paths[path]++
}

func (p *pendingNetNS) remove(path string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paths[path]--; p.paths[path] == 0 {
		delete(p.paths, path)
	}
}

func (p *pendingNetNS) has(path string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paths[path] > 0
}
