package dns

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/cache"
	mdns "github.com/miekg/dns"
)

// complaintInterval is the least time between two log lines about queries.
const complaintInterval = 5 * time.Minute

// chain puts the handlers in order. The cache stands behind the cluster's names:
// those are in memory anyway, and an old answer about them would only be wrong.
func chain(names *cluster, up *forwarder, log *slog.Logger) plugin.Handler {
	c := cache.New()
	c.Next = up
	names.Next = c
	return &complainer{log: log, next: shuffler{next: names}}
}

// complainer logs failed queries, but one line in complaintInterval at most.
type complainer struct {
	log  *slog.Logger
	next plugin.Handler

	mu     sync.Mutex
	quiet  time.Time // no line before
	hidden int       // failures since the last line
}

// Name implements plugin.Handler.
func (c *complainer) Name() string { return "errors" }

// ServeDNS implements plugin.Handler.
func (c *complainer) ServeDNS(ctx context.Context, w mdns.ResponseWriter, r *mdns.Msg) (int, error) {
	code, err := c.next.ServeDNS(ctx, w, r)
	if err != nil {
		c.complain(r, err)
	}
	return code, err
}

func (c *complainer) complain(r *mdns.Msg, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hidden++
	now := time.Now()
	if now.Before(c.quiet) {
		return
	}
	name := ""
	if len(r.Question) > 0 {
		name = r.Question[0].Name
	}
	c.log.Warn("DNS query failed", "name", name, "error", err, "failures", c.hidden)
	c.hidden, c.quiet = 0, now.Add(complaintInterval)
}

// shuffler spreads clients over addresses: most take the first of an answer.
type shuffler struct{ next plugin.Handler }

// Name implements plugin.Handler.
func (s shuffler) Name() string { return "loadbalance" }

// ServeDNS implements plugin.Handler.
func (s shuffler) ServeDNS(ctx context.Context, w mdns.ResponseWriter, r *mdns.Msg) (int, error) {
	return s.next.ServeDNS(ctx, shufflingWriter{w}, r)
}

// shufflingWriter reorders the addresses of each answer.
type shufflingWriter struct{ mdns.ResponseWriter }

// WriteMsg writes a copy of r whose address records change places among
// themselves; a CNAME stays before the addresses it leads to.
func (w shufflingWriter) WriteMsg(r *mdns.Msg) error {
	var places []int
	for i, rr := range r.Answer {
		if t := rr.Header().Rrtype; t == mdns.TypeA || t == mdns.TypeAAAA {
			places = append(places, i)
		}
	}
	if len(places) < 2 {
		return w.ResponseWriter.WriteMsg(r)
	}
	shuffled := *r
	shuffled.Answer = append([]mdns.RR(nil), r.Answer...)
	rand.Shuffle(len(places), func(i, j int) {
		a, b := places[i], places[j]
		shuffled.Answer[a], shuffled.Answer[b] = shuffled.Answer[b], shuffled.Answer[a]
	})
	return w.ResponseWriter.WriteMsg(&shuffled)
}
