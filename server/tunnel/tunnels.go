// Package tunnel reaches the cluster's nodes, and the pods on them, through the tunnels that the nodes hold, or directly
// where there is none.
//
// It promises that a node which has made a new tunnel is reached by that one from then on, and that what a node is called is
// decided by its certificate.
package tunnel

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/clusterd/clusterd/internal/tunnel"
)

const (
	nodePrefix  = "system:node:"
	dialTimeout = 30 * time.Second
)

// Nodes knows where things are.
type Nodes interface {
	// Of is the node that has the address, itself or for a pod.
	Of(address netip.Addr) (node string, found bool)
}

// Tunnels are those of all nodes, by name. They are a component, whose end closes all.
type Tunnels struct {
	nodes Nodes
	log   *slog.Logger

	changed func(node string) // a node has got or lost its tunnel; not called with the lock held

	mu     sync.Mutex
	open   map[string]*tunnel.Server
	news   chan struct{} // closed when there is another tunnel
	closed bool
}

// New makes it without a tunnel.
func New(nodes Nodes, log *slog.Logger) *Tunnels {
	return &Tunnels{nodes: nodes, log: log, changed: func(string) {}, open: map[string]*tunnel.Server{}, news: make(chan struct{})}
}

// Name is the component's name.
func (t *Tunnels) Name() string { return "tunnels" }

// Run waits for ctx and then ends all tunnels.
func (t *Tunnels) Run(ctx context.Context, ready func()) error {
	ready()
	<-ctx.Done()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, s := range t.open {
		_ = s.Close()
	}
	return nil
}

// ServeHTTP takes a tunnel from a node, which the API server has authenticated and authorized.
func (t *Tunnels) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u, ok := request.UserFrom(r.Context())
	if !ok || !strings.HasPrefix(u.GetName(), nodePrefix) {
		http.Error(w, "only nodes have tunnels", http.StatusForbidden)
		return
	}
	if r.Header.Get("Upgrade") != tunnel.Protocol {
		http.Error(w, "this is the place for upgrades to "+tunnel.Protocol, http.StatusUpgradeRequired)
		return
	}
	c, err := upgrade(w)
	if err != nil {
		t.log.Debug("tunnel not made", "user", u.GetName(), "error", err)
		http.Error(w, "this connection cannot be upgraded", http.StatusInternalServerError)
		return
	}
	defer c.Close()
	s, err := tunnel.NewServer(c)
	if err != nil {
		t.log.Warn("tunnel not made", "user", u.GetName(), "error", err)
		return
	}
	t.hold(strings.TrimPrefix(u.GetName(), nodePrefix), s)
}

// hold keeps a node's tunnel until it ends.
func (t *Tunnels) hold(node string, s *tunnel.Server) {
	if !t.put(node, s) {
		_ = s.Close()
		return
	}
	t.log.Debug("tunnel made", "node", node)
	t.changed(node)
	<-s.Done()
	t.remove(node, s)
	t.log.Debug("tunnel ended", "node", node)
	t.changed(node)
}

// upgrade takes the connection from the HTTP server.
func upgrade(w http.ResponseWriter) (net.Conn, error) {
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, err
	}
	_, err = c.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + tunnel.Protocol + "\r\n\r\n"))
	if err == nil {
		err = c.SetDeadline(time.Time{})
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return tunnel.Buffered(c, rw.Reader), nil
}

func (t *Tunnels) put(node string, s *tunnel.Server) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	if old := t.open[node]; old != nil {
		_ = old.Close() // the node would not have made another one if that worked
	}
	t.open[node] = s
	close(t.news)
	t.news = make(chan struct{})
	return true
}

func (t *Tunnels) remove(node string, s *tunnel.Server) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open[node] == s {
		delete(t.open, node)
	}
}

// has is whether a node has a tunnel.
func (t *Tunnels) has(node string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open[node] != nil
}

// of is a node's tunnel, if it has one, and a channel that is closed when there is another tunnel, of whichever node.
func (t *Tunnels) of(node string) (*tunnel.Server, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open[node], t.news
}

// Dial connects to a node or a pod: through the node's tunnel, else directly, and through a tunnel again if one comes while
// that does not succeed.
func (t *Tunnels) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	node := t.node(address)
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var errs []error
	for {
		s, news := t.of(node)
		if s != nil {
			c, err := s.Open(address)
			if err == nil {
				return c, nil
			}
			errs = append(errs, err)
			if now, _ := t.of(node); now != nil && now != s {
				continue
			}
		}
		c, err := direct(ctx, network, address, news)
		if err == nil {
			return c, nil
		}
		if !errors.Is(err, errNews) {
			return nil, errors.Join(append(errs, err)...)
		}
	}
}

var errNews = errors.New("there is another tunnel")

// direct dials until news come, which is errNews.
func direct(ctx context.Context, network, address string, news <-chan struct{}) (net.Conn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-news:
			cancel(errNews)
		case <-done:
		}
	}()
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil && errors.Is(context.Cause(ctx), errNews) {
		err = errNews
	}
	return c, err
}

// node is the one to go by to an address, or empty.
func (t *Tunnels) node(address string) string {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return ""
	}
	node, _ := t.nodes.Of(at.Addr().Unmap())
	return node
}
