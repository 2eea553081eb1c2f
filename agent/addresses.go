package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterd/clusterd/internal/hostos"
	"github.com/clusterd/clusterd/internal/nodewatch"
)

// addressRetry is how soon addresses are written again that the API did not take.
const addressRetry = 2 * time.Second

// Addresses are the node's as they are now: the given ones, or those that the host had at the start and, in the place of
// those that it has no longer, others.
func (a *Agent) Addresses() ([]netip.Addr, error) {
	if !a.cfg.FollowIPs {
		return a.cfg.NodeIPs, nil
	}
	return hostos.Follow(a.cfg.NodeIPs)
}

// followAddresses writes the node's addresses into its Node when they have changed. The kubelet, which has been told those of
// the start, does not touch them while the host has these no longer.
func (a *Agent) followAddresses(ctx context.Context, ready func()) error {
	ready()
	if !a.cfg.FollowIPs {
		<-ctx.Done()
		return nil
	}
	changes, err := hostos.AddressChanges(ctx)
	if err != nil {
		return err
	}
	if _, err := nodewatch.Until(ctx, a.node, a.cfg.NodeName, nodewatch.HasAddress); err != nil {
		return nil // it was told to stop
	}
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, open := <-changes:
			if !open {
				changes = nil // it is told of none any more
				continue
			}
		case <-again:
		}
		again = nil
		if err := a.writeAddresses(ctx); err != nil && ctx.Err() == nil {
			a.d.Log.Debug("the node's addresses are not written yet", "error", err)
			again = time.After(addressRetry)
		}
	}
}

func (a *Agent) writeAddresses(ctx context.Context) error {
	now, err := a.Addresses()
	if err != nil {
		return err
	}
	n, err := a.node.CoreV1().Nodes().Get(ctx, a.cfg.NodeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the Node: %w", err)
	}
	want := withAddresses(n.Status.Addresses, now)
	if slices.Equal(n.Status.Addresses, want) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"addresses": want}})
	if err != nil {
		return fmt.Errorf("write the Node's addresses: %w", err)
	}
	// A strategic patch would merge them by their type, of which there can be two.
	if _, err := a.node.CoreV1().Nodes().Patch(ctx, a.cfg.NodeName, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("write the Node's addresses: %w", err)
	}
	a.d.Log.Info("the node has another address", "addresses", now)
	return nil
}

// withAddresses replaces the node's own addresses among all that a Node has.
func withAddresses(have []v1.NodeAddress, own []netip.Addr) (all []v1.NodeAddress) {
	for _, ip := range own {
		all = append(all, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip.String()})
	}
	for _, h := range have {
		if h.Type != v1.NodeInternalIP {
			all = append(all, h)
		}
	}
	return all
}
