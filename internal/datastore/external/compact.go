package external

import "time"

// compactEvery is how old a revision is at least before it is given up: what API servers ask of etcd.
const compactEvery = 5 * time.Minute

// compact gives up old revisions until Close. Servers that share a database all do it; the drivers let one of them at a time.
func (b *Backend) compact() {
	tick := time.NewTicker(compactEvery)
	defer tick.Stop()
	target := b.feed.reached()
	for {
		select {
		case <-tick.C:
		case <-b.life.Done():
			return
		}
		next := b.feed.reached()
		_, _ = b.Compact(b.life, target) // one that fails is made up for by the next
		target = next
	}
}
