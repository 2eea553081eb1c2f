package network

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// sysctlRoot is where the switches of the process's network namespace are.
const sysctlRoot = "/proc/sys/net"

// setSysctls makes the node a router for its pods. It returns with an error only
// when a switch has another value and cannot be changed.
func (n *Network) setSysctls() error {
	bridge := n.cfg.Bridge
	var errs []error
	if slices.ContainsFunc(n.ledger.Gateways(), netip.Addr.Is4) {
		errs = append(errs,
			sysctl("ipv4/ip_forward", "1"),
			// 127.0.0.1:hostPort leads out of the bridge; see the chain input in rules.go.
			sysctl("ipv4/conf/"+bridge+"/route_localnet", "1"))
	}
	if slices.ContainsFunc(n.ledger.Gateways(), netip.Addr.Is6) {
		errs = append(errs,
			keepRouterAdvertisements(sysctlRoot),
			sysctl("ipv6/conf/"+bridge+"/accept_dad", "0"),
			sysctl("ipv6/conf/"+bridge+"/accept_ra", "0"),
			sysctl("ipv6/conf/all/forwarding", "1"))
	}
	return errors.Join(errs...)
}

func sysctl(name, value string) error {
	path := filepath.Join(sysctlRoot, name)
	if current, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(current)) == value {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set kernel switch net/%s to %s: %w", name, value, err)
	}
	return nil
}

// keepRouterAdvertisements raises accept_ra from 1 to 2: with 1 an interface
// loses the default route it got from its router once the node forwards.
func keepRouterAdvertisements(root string) error {
	paths, err := filepath.Glob(filepath.Join(root, "ipv6/conf/*/accept_ra"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil || strings.TrimSpace(string(data)) != "1" {
			continue
		}
		if err := os.WriteFile(path, []byte("2"), 0o644); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("keep router advertisements: %w", err)
		}
	}
	return nil
}

// filterBridged lets packets between two pods on the bridge pass the node's
// packet rules, which is how an answer from a Service's pod on the same node is
// translated back. It reports whether they do.
func filterBridged() bool {
	if _, err := os.Stat(filepath.Join(sysctlRoot, "bridge")); err != nil {
		if loadModule(moduleRoot(), "br_netfilter") != nil {
			return false
		}
	}
	for _, name := range []string{"bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"} {
		if err := sysctl(name, "1"); err != nil && !errors.Is(err, fs.ErrNotExist) { // one is missing without IPv6
			return false
		}
	}
	return true
}
