package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/transport"
)

const (
	// addressPatience is how long an address may take to become usable: a fresh
	// IPv6 address is checked for duplicates first.
	addressPatience = 10 * time.Second
	addressRetry    = 100 * time.Millisecond
)

// listener is one address, open for UDP and TCP.
type listener struct {
	server *dnsserver.Server
	tcp    net.Listener
	udp    net.PacketConn
}

// listeners are all addresses of a server.
type listeners []listener

// listen opens every address, or none and says which failed. It returns no
// error when ctx ended first.
func listen(ctx context.Context, addrs []netip.Addr, port int, handler plugin.Handler) (listeners, error) {
	var all listeners
	for _, addr := range addrs {
		l, err := patiently(ctx, func() (listener, error) {
			return listenOn(net.JoinHostPort(addr.String(), strconv.Itoa(port)), handler)
		})
		if err != nil {
			all.close()
			if ctx.Err() != nil {
				return nil, nil
			}
			return nil, fmt.Errorf("listen on %s port %d: %w", addr, port, err)
		}
		all = append(all, l)
	}
	return all, nil
}

// patiently repeats open while the address does not exist yet.
func patiently(ctx context.Context, open func() (listener, error)) (listener, error) {
	retry := time.NewTicker(addressRetry)
	defer retry.Stop()
	for deadline := time.Now().Add(addressPatience); ; {
		l, err := open()
		if !errors.Is(err, syscall.EADDRNOTAVAIL) || time.Now().After(deadline) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return l, ctx.Err()
		case <-retry.C:
		}
	}
}

// listenOn opens one address. The sockets are opened here and not by CoreDNS,
// which would share a port that another process already serves.
func listenOn(addr string, handler plugin.Handler) (listener, error) {
	config := &dnsserver.Config{Zone: ".", Transport: transport.DNS}
	config.AddPlugin(func(plugin.Handler) plugin.Handler { return handler })
	server, err := dnsserver.NewServer(transport.DNS+"://"+addr, []*dnsserver.Config{config})
	if err != nil {
		return listener{}, err
	}
	tcp, err := net.Listen("tcp", addr)
	if err != nil {
		return listener{}, err
	}
	udp, err := net.ListenPacket("udp", addr)
	if err != nil {
		return listener{}, errors.Join(err, tcp.Close())
	}
	return listener{server: server, tcp: tcp, udp: udp}, nil
}

// serve answers until ctx ends, then finishes the queries under way. It returns
// the first error of a socket that failed by itself.
func (ls listeners) serve(ctx context.Context) error {
	failed := make(chan error, 2*len(ls))
	var running sync.WaitGroup
	for _, l := range ls {
		running.Go(func() { failed <- l.server.Serve(l.tcp) })
		running.Go(func() { failed <- l.server.ServePacket(l.udp) })
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
		err = fmt.Errorf("serve queries: %w", err)
	}
	for _, l := range ls {
		_ = l.server.Stop()
	}
	ls.close()
	running.Wait()
	return err
}

// close releases the sockets; those of a stopped server are closed already.
func (ls listeners) close() {
	for _, l := range ls {
		_ = l.tcp.Close()
		_ = l.udp.Close()
	}
}
