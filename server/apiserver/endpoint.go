package apiserver

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
)

// endpoint keeps the endpoint of the Service kubernetes at the address that the server has at the moment. Upstream keeps it at
// that of the start.
type endpoint struct {
	reconcilers.EndpointReconciler
	address func() netip.Addr
	log     *slog.Logger

	mu    sync.Mutex
	again func() error // what upstream has asked for last
}

func newEndpoint(c *rest.Config, address func() netip.Addr, log *slog.Logger) (*endpoint, error) {
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("make the client for the endpoint of the Service kubernetes: %w", err)
	}
	adapter := reconcilers.NewEndpointsAdapter(client.CoreV1(), client.DiscoveryV1())
	return &endpoint{EndpointReconciler: reconcilers.NewMasterCountEndpointReconciler(1, adapter), address: address, log: log}, nil
}

// ReconcileEndpoints implements upstream's interface.
func (e *endpoint) ReconcileEndpoints(service string, _ net.IP, ports []corev1.EndpointPort, reconcilePorts bool) error {
	do := func() error {
		return e.EndpointReconciler.ReconcileEndpoints(service, e.address().AsSlice(), ports, reconcilePorts)
	}
	e.mu.Lock()
	e.again = do
	e.mu.Unlock()
	return do()
}

// RemoveEndpoints implements upstream's interface.
func (e *endpoint) RemoveEndpoints(service string, _ net.IP, ports []corev1.EndpointPort) error {
	return e.EndpointReconciler.RemoveEndpoints(service, e.address().AsSlice(), ports)
}

// follow looks at the address with each change until ctx ends. What does not work is upstream's to try again.
func (e *endpoint) follow(ctx context.Context, changes <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case _, open := <-changes:
			if !open {
				return
			}
		}
		e.mu.Lock()
		again := e.again
		e.mu.Unlock()
		if again == nil {
			continue
		}
		if err := again(); err != nil && ctx.Err() == nil {
			e.log.Warn("the Service kubernetes is not at the server's new address yet", "error", err)
		}
	}
}
