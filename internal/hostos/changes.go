package hostos

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
)

// LocalAddresses are the loopback addresses and the global ones of all interfaces that are up, in order, without those of
// the named interfaces.
func LocalAddresses(without ...string) ([]net.IP, error) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	ips := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	for _, l := range links {
		if l.Flags&net.FlagUp == 0 || slices.Contains(without, l.Name) {
			continue
		}
		addrs, err := l.Addrs()
		if err != nil {
			continue // the interface has gone since
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
				ips = append(ips, n.IP)
			}
		}
	}
	slices.SortFunc(ips, func(a, b net.IP) int { return slices.Compare(a.To16(), b.To16()) })
	return ips, nil
}

// settle is how long addresses have to stay as they are before a change is told: DHCP takes one away before it gives the next.
const settle = time.Second

// AddressChanges tells when addresses of the host have changed, until ctx ends, when the channel is closed. It costs nothing
// while they do not.
func AddressChanges(ctx context.Context) (<-chan struct{}, error) {
	updates, err := subscribe(ctx)
	if err != nil {
		return nil, err
	}
	told := make(chan struct{}, 1)
	go func() {
		defer close(told)
		var quiet <-chan time.Time
		for {
			select {
			case <-ctx.Done():
				for range updates { // whoever sends them waits until they are taken
				}
				return
			case _, open := <-updates:
				if !open { // the kernel had more news than the socket holds
					if updates, err = subscribe(ctx); err != nil {
						return
					}
				}
				quiet = time.After(settle)
			case <-quiet:
				quiet = nil
				select {
				case told <- struct{}{}:
				default:
				}
			}
		}
	}()
	return told, nil
}

func subscribe(ctx context.Context) (chan netlink.AddrUpdate, error) {
	updates := make(chan netlink.AddrUpdate, 16)
	if err := netlink.AddrSubscribe(updates, ctx.Done()); err != nil {
		return nil, fmt.Errorf("subscribe to address changes: %w", err)
	}
	return updates, nil
}
