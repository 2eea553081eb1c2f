// Package nodewatch waits for one Node object to come into a state, and follows all of them. For one it watches that object
// alone, which is all that a node's own user may. It starts again by itself when a watch ends.
package nodewatch

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	clientset "k8s.io/client-go/kubernetes"
	watchtools "k8s.io/client-go/tools/watch"
)

// Until blocks until the named Node exists and is as want says, and returns it. The only error is that of ctx.
func Until(ctx context.Context, c clientset.Interface, name string, want func(*v1.Node) bool) (*v1.Node, error) {
	e, err := watchtools.UntilWithSync(ctx, listWatch(c, name), &v1.Node{}, nil, func(e watch.Event) (bool, error) {
		n, ok := e.Object.(*v1.Node)
		return ok && e.Type != watch.Deleted && want(n), nil
	})
	if err != nil {
		return nil, fmt.Errorf("wait for node %s: %w", name, err)
	}
	return e.Object.(*v1.Node), nil
}

// HasAddress is whether a Node has said at which address it is.
func HasAddress(n *v1.Node) bool {
	for _, a := range n.Status.Addresses {
		if a.Type == v1.NodeInternalIP {
			return true
		}
	}
	return false
}

// ReadySince is whether a Node is Ready and its kubelet has said so at or after start: what an earlier run has left does
// not count.
func ReadySince(start time.Time) func(*v1.Node) bool {
	start = start.Truncate(time.Second) // the API's times have no fractions
	return func(n *v1.Node) bool {
		for _, c := range n.Status.Conditions {
			if c.Type == v1.NodeReady {
				return c.Status == v1.ConditionTrue && !c.LastHeartbeatTime.Time.Before(start)
			}
		}
		return false
	}
}

// PodCIDRs blocks until the named Node has been given its ranges of pod addresses, and returns them.
func PodCIDRs(ctx context.Context, c clientset.Interface, name string) ([]netip.Prefix, error) {
	n, err := Until(ctx, c, name, func(n *v1.Node) bool { return len(n.Spec.PodCIDRs) > 0 })
	if err != nil {
		return nil, err
	}
	var out []netip.Prefix
	for _, s := range n.Spec.PodCIDRs {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("pod CIDR of node %s: %w", name, err)
		}
		out = append(out, p)
	}
	return out, nil
}
