package join

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/clusterd/clusterd/internal/dial"
	"github.com/clusterd/clusterd/internal/tunnel"
)

// Balancer leads connections to a local port on to one of the servers: to the one that was reached last, and to the next
// when that does not answer. TLS goes through it untouched.
type Balancer struct {
	at       netip.AddrPort
	fallback string
	log      *slog.Logger
	changes  chan struct{}

	mu      sync.Mutex
	servers []string // the one that was reached last first
	only    bool     // the fallback was reached last, when none of the servers was
	open    map[net.Conn]bool
}

// serverTimeout is how long a server may take to answer.
const serverTimeout = 5 * time.Second

// NewBalancer makes a balancer. The fallback, host and port, is tried when none of the servers can be reached.
func NewBalancer(at netip.AddrPort, servers []string, fallback string, log *slog.Logger) *Balancer {
	return &Balancer{at: at, fallback: fallback, log: log, servers: slices.Clone(servers), open: map[net.Conn]bool{}, changes: make(chan struct{}, 1)}
}

// URL is where the servers can be reached.
func (b *Balancer) URL() string { return "https://" + b.at.String() }

// SetServers replaces the servers. Connections that are open stay.
func (b *Balancer) SetServers(servers []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.only = b.only && !slices.ContainsFunc(servers, func(s string) bool { return !slices.Contains(b.servers, s) }) // new ones are tried
	if len(b.servers) > 0 && slices.Contains(servers, b.servers[0]) {
		servers = append([]string{b.servers[0]}, slices.DeleteFunc(slices.Clone(servers), func(s string) bool { return s == b.servers[0] })...)
	}
	b.servers = slices.Clone(servers)
	select {
	case b.changes <- struct{}{}:
	default:
	}
}

// Servers are those that are known.
func (b *Balancer) Servers() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.servers)
}

// Changes tells when SetServers has been called.
func (b *Balancer) Changes() <-chan struct{} { return b.changes }

// Name is the component's name.
func (b *Balancer) Name() string { return "server connections" }

// Run accepts connections until ctx ends; then it closes all.
func (b *Balancer) Run(ctx context.Context, ready func()) error {
	l, err := net.Listen("tcp", b.at.String())
	if err != nil {
		return fmt.Errorf("listen for connections to the servers: %w: choose another port with --lb-server-port", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	ready()
	var serving sync.WaitGroup
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			b.log.Debug("connection not accepted", "error", err)
			pause(ctx, 100*time.Millisecond) // out of descriptors
			continue
		}
		serving.Go(func() { b.serve(ctx, c) })
	}
	b.closeAll()
	serving.Wait()
	return nil
}

func (b *Balancer) serve(ctx context.Context, client net.Conn) {
	defer client.Close()
	server, err := b.dial(ctx)
	if err != nil {
		b.log.Debug("no server can be reached", "error", err)
		return
	}
	defer server.Close()
	if !b.track(client, server) {
		return
	}
	defer b.forget(client, server)
	done := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{server, client}, {client, server}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1])
			_ = pair[0].(*net.TCPConn).CloseWrite()
			done <- struct{}{}
		}()
	}
	<-done
	<-done
}

// dial connects to the first server that answers.
func (b *Balancer) dial(ctx context.Context) (net.Conn, error) {
	b.mu.Lock()
	candidates := b.candidates()
	b.mu.Unlock()
	d := net.Dialer{Timeout: serverTimeout}
	c, i, err := dial.First(ctx, candidates, func(ctx context.Context, server string) (net.Conn, error) {
		return d.DialContext(ctx, "tcp", server)
	})
	if err != nil {
		return nil, err
	}
	if err := tunnel.Watch(c); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if i > 0 {
		b.prefer(candidates[i])
	}
	return c, nil
}

// candidates are the servers, and the fallback if it is none of them: after them, or before them if it alone was reached
// last, since each that says nothing takes its time.
func (b *Balancer) candidates() []string {
	switch {
	case slices.Contains(b.servers, b.fallback):
		return slices.Clone(b.servers)
	case b.only:
		return append([]string{b.fallback}, b.servers...)
	}
	return append(slices.Clone(b.servers), b.fallback)
}

// prefer has a server tried first from now on.
func (b *Balancer) prefer(server string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.only
	if b.only = !slices.Contains(b.servers, server); b.only && !was {
		b.log.Info("connected by the URL that was joined by: the server's own address is not reached", "server", server)
	}
	if i := slices.Index(b.servers, server); i > 0 {
		b.servers = append([]string{server}, slices.Delete(b.servers, i, i+1)...)
		b.log.Info("connected to another server", "server", server)
	}
}

// track notes open connections; false when the balancer has stopped.
func (b *Balancer) track(conns ...net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == nil {
		return false
	}
	for _, c := range conns {
		b.open[c] = true
	}
	return true
}

func (b *Balancer) forget(conns ...net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range conns {
		delete(b.open, c)
	}
}

func (b *Balancer) closeAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.open {
		_ = c.Close()
	}
	b.open = nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
