// Package tunnel holds a tunnel to each server, by which the server reaches the node's kubelet and pods.
//
// It promises that a tunnel which is lost, also silently, is made again within seconds of the server being reachable, and
// that a server gets no further than to the kubelet, the node's own addresses and its pods.
package tunnel

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/clusterd/clusterd/internal/dial"
	"github.com/clusterd/clusterd/internal/tunnel"
)

const (
	dialTimeout = 5 * time.Second
	retry       = time.Second
)

// Config is what the component is made from. All fields are required.
type Config struct {
	// Servers gives the addresses, host and port, of the servers as they are known at that moment; Changes tells when they
	// are others.
	Servers func() []string
	Changes <-chan struct{}
	// Fallback is an address at which one of the servers can be reached, for a node that cannot reach the only one by the
	// address that it says it has.
	Fallback string
	// TLS gives the configuration, with the node's certificate as it is at that moment, to connect to a server with.
	TLS func() (*tls.Config, error)
	// Allowed is whether the server may connect to an address.
	Allowed func(address string) bool
}

// Tunnels is the component.
type Tunnels struct {
	cfg Config
	log *slog.Logger
}

// New makes the component.
func New(cfg Config, log *slog.Logger) *Tunnels { return &Tunnels{cfg: cfg, log: log} }

// Name is the component's name.
func (t *Tunnels) Name() string { return "tunnels" }

// Run holds the tunnels until ctx ends. It is ready at once: the node works without them, too.
func (t *Tunnels) Run(ctx context.Context, ready func()) error {
	ready()
	held := map[string]context.CancelFunc{}
	var holding sync.WaitGroup
	for ctx.Err() == nil {
		now := map[string]bool{}
		for _, s := range t.cfg.Servers() {
			now[s] = true
			if held[s] == nil {
				one, cancel := context.WithCancel(ctx)
				held[s] = cancel
				holding.Go(func() { t.hold(one, s) })
			}
		}
		for s, cancel := range held {
			if !now[s] {
				cancel()
				delete(held, s)
			}
		}
		select {
		case <-ctx.Done():
		case <-t.cfg.Changes:
		}
	}
	holding.Wait()
	return nil
}

// hold makes the tunnel to a server again and again.
func (t *Tunnels) hold(ctx context.Context, server string) {
	said := ""
	for ctx.Err() == nil {
		err := t.once(ctx, server, func() { said = "" })
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			t.log.Debug("no tunnel", "server", server, "error", err)
		}
		pause(ctx, retry)
	}
}

// addresses are where a server can be: the fallback leads to it for certain when there is no other.
func (t *Tunnels) addresses(server string) []string {
	if len(t.cfg.Servers()) == 1 && server != t.cfg.Fallback {
		return []string{server, t.cfg.Fallback}
	}
	return []string{server}
}

// once makes a tunnel and serves it until it ends.
func (t *Tunnels) once(ctx context.Context, server string, made func()) error {
	c, err := t.connect(ctx, t.addresses(server))
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	made()
	t.log.Debug("tunnel made", "server", server)
	return tunnel.Serve(c, t.dial)
}

func (t *Tunnels) dial(address string) (net.Conn, error) {
	if !t.cfg.Allowed(address) {
		return nil, fmt.Errorf("%s is none of the node's addresses", address)
	}
	return net.DialTimeout("tcp", address, dialTimeout)
}

// connect makes the connection and asks for the upgrade.
func (t *Tunnels) connect(ctx context.Context, addresses []string) (net.Conn, error) {
	config, err := t.cfg.TLS()
	if err != nil {
		return nil, err
	}
	config.NextProtos = []string{"http/1.1"} // the newer versions cannot be upgraded
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout}, Config: config}
	c, _, err := dial.First(ctx, addresses, func(ctx context.Context, address string) (net.Conn, error) {
		limited, cancel := context.WithTimeout(ctx, 2*dialTimeout)
		defer cancel()
		return d.DialContext(limited, "tcp", address)
	})
	if err != nil {
		return nil, err
	}
	upgraded, err := upgrade(c)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return upgraded, nil
}

func upgrade(c net.Conn) (net.Conn, error) {
	if err := c.SetDeadline(time.Now().Add(dialTimeout)); err != nil {
		return nil, err
	}
	r, err := http.NewRequest(http.MethodGet, "https://kubernetes"+tunnel.Path, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", tunnel.Protocol)
	if err := r.Write(c); err != nil {
		return nil, fmt.Errorf("ask for a tunnel: %w", err)
	}
	ahead := bufio.NewReader(c)
	res, err := http.ReadResponse(ahead, r)
	if err != nil {
		return nil, fmt.Errorf("ask for a tunnel: %w", err)
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		return nil, fmt.Errorf("ask for a tunnel: the server answers %s", res.Status)
	}
	return tunnel.Buffered(c, ahead), c.SetDeadline(time.Time{})
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
