package dns

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/client-go/rest"
)

const (
	serviceNamespace = "kube-system"
	serviceName      = "kube-dns"
	managedBy        = "clusterd"
)

// PublishEndpoints makes addrs and port, of the DNS server on node, endpoints of
// the Service kube-system/kube-dns. There is one EndpointSlice for each node and
// address family, named kube-dns-NODE and kube-dns-NODE-ipv6. It writes only
// what is missing or different, and removes the slice of a family without
// addresses. It needs get, create, update and delete of endpointslices there.
func PublishEndpoints(ctx context.Context, config *rest.Config, node string, addrs []netip.Addr, port int) error {
	client, err := discoveryclient.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make discovery client: %w", err)
	}
	slices := client.EndpointSlices(serviceNamespace)
	for _, want := range endpointSlices(node, addrs, port) {
		if err := publish(ctx, slices, want); err != nil {
			return fmt.Errorf("publish endpoints %s: %w", want.Name, err)
		}
	}
	return nil
}

func publish(ctx context.Context, slices discoveryclient.EndpointSliceInterface, want *discoveryv1.EndpointSlice) error {
	have, err := slices.Get(ctx, want.Name, metav1.GetOptions{})
	switch missing := apierrors.IsNotFound(err); {
	case missing && len(want.Endpoints) == 0:
		return nil
	case missing:
		_, err = slices.Create(ctx, want, metav1.CreateOptions{})
		return err
	case err != nil:
		return err
	case len(want.Endpoints) == 0:
		return slices.Delete(ctx, want.Name, metav1.DeleteOptions{})
	case sameSlice(have, want):
		return nil
	}
	next := have.DeepCopy()
	next.Labels, next.Endpoints, next.Ports = want.Labels, want.Endpoints, want.Ports
	_, err = slices.Update(ctx, next, metav1.UpdateOptions{})
	return err
}

func sameSlice(a, b *discoveryv1.EndpointSlice) bool {
	return equality.Semantic.DeepEqual(a.Labels, b.Labels) &&
		equality.Semantic.DeepEqual(a.Endpoints, b.Endpoints) &&
		equality.Semantic.DeepEqual(a.Ports, b.Ports)
}

// endpointSlices returns the slice of each family, empty for one without addresses.
func endpointSlices(node string, addrs []netip.Addr, port int) []*discoveryv1.EndpointSlice {
	v4 := newSlice(serviceName+"-"+node, discoveryv1.AddressTypeIPv4, port)
	v6 := newSlice(serviceName+"-"+node+"-ipv6", discoveryv1.AddressTypeIPv6, port)
	for _, addr := range addrs {
		slice := v4
		if addr = addr.Unmap(); addr.Is6() {
			slice = v6
		}
		slice.Endpoints = append(slice.Endpoints, endpoint(node, addr))
	}
	return []*discoveryv1.EndpointSlice{v4, v6}
}

// endpoint says that pods of node should use addr, which is on their own node.
func endpoint(node string, addr netip.Addr) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses:  []string{addr.String()},
		NodeName:   new(node),
		Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
		Hints:      &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: node}}},
	}
}

func newSlice(name string, family discoveryv1.AddressType, port int) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:      name,
			Namespace: serviceNamespace,
			Labels: map[string]string{
				discoveryv1.LabelServiceName: serviceName,
				discoveryv1.LabelManagedBy:   managedBy,
			},
		},
		AddressType: family,
		Ports: []discoveryv1.EndpointPort{
			endpointPort("dns", corev1.ProtocolUDP, port),
			endpointPort("dns-tcp", corev1.ProtocolTCP, port),
		},
	}
}

func endpointPort(name string, protocol corev1.Protocol, port int) discoveryv1.EndpointPort {
	return discoveryv1.EndpointPort{Name: new(name), Protocol: new(protocol), Port: new(int32(port))}
}
