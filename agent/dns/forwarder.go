package dns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	mdns "github.com/miekg/dns"
)

const (
	// tryTimeout and queryTimeout bound one try and one query. Clients give up
	// after five seconds.
	tryTimeout   = 2 * time.Second
	queryTimeout = 4500 * time.Millisecond
	// maxForwarded bounds the queries that wait for resolvers at one time.
	maxForwarded = 1000
)

var errBusy = errors.New("too many queries wait for the host's resolvers")

// forwarder asks the host's resolvers. The list can change at any time; a query
// under way goes on with the old one. When the server's life ends all queries
// end, so that none holds up the stop.
//
// Why not CoreDNS's forward plugin: its list is fixed, it wakes up every ten
// seconds for each resolver, and it probes one that is down twice a second for
// as long as that lasts, which on a machine without a network is forever.
type forwarder struct {
	life    context.Context
	list    atomic.Pointer[resolvers]
	waiting atomic.Int64
}

// resolvers is a list of address:port in the host's order.
type resolvers struct {
	addrs []string
	good  atomic.Int64 // index of the one that answered last; it is asked first
}

func newForwarder(life context.Context) *forwarder {
	f := &forwarder{life: life}
	f.list.Store(&resolvers{})
	return f
}

// set replaces the list and reports whether it was another one.
func (f *forwarder) set(addrs []string) bool {
	if slices.Equal(f.list.Load().addrs, addrs) {
		return false
	}
	f.list.Store(&resolvers{addrs: addrs})
	return true
}

// Name implements plugin.Handler.
func (f *forwarder) Name() string { return "forward" }

// ServeDNS implements plugin.Handler.
func (f *forwarder) ServeDNS(ctx context.Context, w mdns.ResponseWriter, r *mdns.Msg) (int, error) {
	list := f.list.Load()
	if len(list.addrs) == 0 {
		return mdns.RcodeServerFailure, nil
	}
	if f.waiting.Add(1) > maxForwarded {
		f.waiting.Add(-1)
		return mdns.RcodeRefused, errBusy
	}
	defer f.waiting.Add(-1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.life, cancel)()
	reply, err := list.ask(ctx, w.RemoteAddr().Network(), r)
	if err != nil {
		return mdns.RcodeServerFailure, err
	}
	reply.Id = r.Id
	return mdns.RcodeSuccess, w.WriteMsg(reply)
}

// ask tries the resolvers, beginning with the one that answered last, until one
// gives a useful answer. If none does, a useless answer is better than an error.
func (l *resolvers) ask(ctx context.Context, network string, r *mdns.Msg) (*mdns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var useless *mdns.Msg
	var errs []error
	first := int(l.good.Load())
	for i := range l.addrs {
		at := (first + i) % len(l.addrs)
		reply, err := exchange(ctx, network, l.addrs[at], r)
		switch {
		case err != nil:
			errs = append(errs, err)
		case reply.Rcode == mdns.RcodeServerFailure || reply.Rcode == mdns.RcodeRefused:
			useless = reply
		default:
			l.good.Store(int64(at))
			return reply, nil
		}
	}
	if useless != nil {
		return useless, nil
	}
	return nil, errors.Join(errs...)
}

// exchange asks one resolver, over the client's protocol: a cut UDP answer goes
// back as it is, and the client comes again over TCP.
func exchange(ctx context.Context, network, addr string, r *mdns.Msg) (*mdns.Msg, error) {
	query := r.Copy()
	query.Id = mdns.Id()
	c := mdns.Client{Net: network, Timeout: tryTimeout}
	conn, err := c.DialContext(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("ask resolver %s: %w", addr, err)
	}
	defer conn.Close()
	// Of ctx the library looks at the deadline only.
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	reply, _, err := c.ExchangeWithConnContext(ctx, query, conn)
	if err != nil {
		return nil, fmt.Errorf("ask resolver %s: %w", addr, err)
	}
	if !sameQuestion(query, reply) {
		return nil, fmt.Errorf("ask resolver %s: it answered another question", addr)
	}
	return reply, nil
}

func sameQuestion(query, reply *mdns.Msg) bool {
	if !reply.Response || len(query.Question) != len(reply.Question) {
		return false
	}
	for i, q := range query.Question {
		a := reply.Question[i]
		if q.Qtype != a.Qtype || q.Qclass != a.Qclass || !strings.EqualFold(q.Name, a.Name) {
			return false
		}
	}
	return true
}

// usable turns what the host is configured with into addresses that can be
// asked. Loopback addresses are someone's local cache, which often asks us
// again; the server's own addresses and Service addresses surely do.
func usable(servers []string, own []netip.Addr, services []netip.Prefix) []string {
	var out []string
	for _, text := range servers {
		server, ok := parseServer(text)
		addr := server.Addr().WithZone("")
		inServices := slices.ContainsFunc(services, func(p netip.Prefix) bool { return p.Contains(addr) })
		if !ok || addr.IsLoopback() || addr.IsUnspecified() || inServices || slices.Contains(own, addr) {
			continue
		}
		if s := server.String(); !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// parseServer reads an address with or without port.
func parseServer(text string) (netip.AddrPort, bool) {
	if server, err := netip.ParseAddrPort(text); err == nil {
		return netip.AddrPortFrom(server.Addr().Unmap(), server.Port()), true
	}
	addr, err := netip.ParseAddr(text)
	return netip.AddrPortFrom(addr.Unmap(), 53), err == nil
}
