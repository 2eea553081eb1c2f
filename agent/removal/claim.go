package removal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/clusterd/clusterd/agent/network"
	"github.com/clusterd/clusterd/agent/network/overlay"
	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/ledger"
)

// outside are the directories that parts of a node make where their interfaces say, and nowhere else.
var outside = []string{"/var/lib/kubelet/device-plugins", "/var/lib/cni/results", "/var/log/containers"}

// Claim enters what a node is going to make and what is not there yet. It belongs before a start, under the lock of the
// data directory.
func Claim(l *ledger.Ledger, dir datadir.Dir) error {
	for _, path := range append([]string{dir.RunDir()}, outside...) {
		if err := l.AddTree(path); err != nil {
			return err
		}
	}
	if dir.PodLogsOutside() {
		if err := l.AddTree(dir.PodLogs()); err != nil {
			return err
		}
	}
	if err := l.AddDir(datadir.NetNS); err != nil {
		return err
	}
	entries, err := kernelClaims(l)
	if err != nil {
		return err
	}
	return l.Add(entries...)
}

// kernelClaims are the things of the kernel that are not there. Claims of the same boot that are entered already stay.
func kernelClaims(l *ledger.Ledger) ([]ledger.Entry, error) {
	var all []ledger.Entry
	for _, name := range []string{network.DefaultBridge, overlay.Device, overlay.WireDevice} {
		if _, err := netlink.LinkByName(name); isNoLink(err) {
			all = append(all, ledger.Entry{Kind: ledger.Link, Name: name})
		} else if err != nil {
			return nil, fmt.Errorf("look for network interface %s: %w", name, err)
		}
	}
	mounts, err := readMounts()
	if err != nil {
		return nil, err
	}
	if !mounts.has(datadir.NetNS) {
		all = append(all, ledger.Entry{Kind: ledger.Mount, Name: datadir.NetNS})
	}
	for _, root := range mounts.cgroups() {
		for _, name := range []string{"kubepods", "kubepods.slice"} {
			if path := filepath.Join(root, name); !there(path) {
				all = append(all, ledger.Entry{Kind: ledger.Cgroup, Name: path})
			}
		}
	}
	return append(append(all, tableClaims()...), ruleClaims(l)...), nil
}

func isNoLink(err error) bool {
	_, none := errors.AsType[netlink.LinkNotFoundError](err)
	return none
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// proxyTables are kube-proxy's.
var proxyTables = []string{"ip kube-proxy", "ip6 kube-proxy"}

// baseChains are those that iptables makes when it makes a rule in a table.
var baseChains = map[string][]string{
	"filter": {"INPUT", "FORWARD", "OUTPUT"},
	"nat":    {"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"},
	"mangle": {"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"},
}

var families = map[string]nftables.TableFamily{"ip": nftables.TableFamilyIPv4, "ip6": nftables.TableFamilyIPv6}

// tableClaims are empty on a kernel without nftables, where none of these will be.
func tableClaims() []ledger.Entry {
	has, err := filterState()
	if err != nil {
		return nil
	}
	var all []ledger.Entry
	claim := func(kind ledger.Kind, name string) {
		if !has[name] {
			all = append(all, ledger.Entry{Kind: kind, Name: name})
		}
	}
	for _, name := range append(network.Tables, proxyTables...) {
		claim(ledger.Table, name)
	}
	for family := range families {
		for table, chains := range baseChains {
			claim(ledger.BaseTable, family+" "+table)
			for _, chain := range chains {
				claim(ledger.Chain, family+" "+table+" "+chain)
			}
		}
	}
	return all
}

// ruleClaims are the iptables programs of the host, unless there are rules of another kubelet already.
func ruleClaims(l *ledger.Ledger) []ledger.Entry {
	var all []ledger.Entry
	for _, tool := range []string{"iptables", "ip6tables"} {
		if l.Has(ledger.Rules, tool) {
			continue // a restart, with many rules of ours to list
		}
		if rules, err := saveRules(tool); err == nil && !strings.Contains(rules, "\n:"+kubePrefix) {
			all = append(all, ledger.Entry{Kind: ledger.Rules, Name: tool})
		}
	}
	return all
}
