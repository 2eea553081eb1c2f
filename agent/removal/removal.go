// Package removal knows what a node makes on a machine outside of its data directory, enters it into the ledger before
// that happens, and takes it away again.
//
// It promises that only what is in the ledger is removed, besides what is in the data directory and recognised there by
// its name: a link, a table, a mount or a file that was there before the first start, or that somebody else has made
// since, stays. Everything can be done again after an interruption.
//
// Why not by names alone: a machine may have had another kubelet, iptables rules of its own, or a disk mounted below the
// data directory, and a name does not tell whose a thing is.
package removal

import (
	"errors"

	"github.com/clusterd/clusterd/agent/network"
	"github.com/clusterd/clusterd/agent/network/overlay"
	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/ledger"
)

// Machine is what a clusterd with the given data directory has made here. Nothing of it runs any more but pods: the caller
// has the lock of the data directory.
type Machine struct {
	Dir    datadir.Dir
	Ledger *ledger.Ledger
}

// Network removes links, routes and packet rules.
func (m Machine) Network() error {
	errs := []error{network.RemoveExceptions(network.DefaultBridge, overlay.Device, overlay.WireDevice), overlay.RemoveRoutes()}
	for _, name := range []string{overlay.Device, overlay.WireDevice} {
		if m.Ledger.Has(ledger.Link, name) {
			errs = append(errs, overlay.RemoveDevice(name))
		}
	}
	if m.Ledger.Has(ledger.Link, network.DefaultBridge) {
		errs = append(errs, network.RemoveBridge(network.DefaultBridge))
	}
	return errors.Join(append(errs, m.removeRules(), m.removeTables())...)
}
