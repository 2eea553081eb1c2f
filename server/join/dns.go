package join

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/clusterd/clusterd/internal/lifecycle"
)

// PublishDNS tells the cluster at which addresses a node's DNS server answers; none takes back what was told.
type PublishDNS func(ctx context.Context, node string, addrs []netip.Addr) error

// NewDNS makes the component that publishes the DNS servers of all nodes but own, which does it itself. It does so for them
// because who may write the endpoints of the cluster's DNS could answer for all of it.
func NewDNS(config *rest.Config, own string, publish PublishDNS, log *slog.Logger) (lifecycle.Component, error) {
	client, err := clientset.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the client for the nodes' DNS: %w", err)
	}
	return lifecycle.Func("nodes' dns", func(ctx context.Context, ready func()) error {
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
		store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
			ListerWatcher: cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", "", fields.Everything()),
			ObjectType:    &corev1.Node{},
			Transform:     addressesOnly,
			Handler:       changes(own, queue),
		})
		go informer.RunWithContext(ctx)
		context.AfterFunc(ctx, queue.ShutDown)
		ready()
		for {
			name, end := queue.Get()
			if end {
				return nil
			}
			if err := publish(ctx, name, gateways(store, name)); err != nil {
				log.Debug("DNS server not published yet", "node", name, "error", err)
				queue.AddRateLimited(name)
			} else {
				queue.Forget(name)
			}
			queue.Done(name)
		}
	}), nil
}

// addressesOnly keeps of a Node what is looked at here.
func addressesOnly(o any) (any, error) {
	if n, ok := o.(*corev1.Node); ok {
		return &corev1.Node{TypeMeta: n.TypeMeta, ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion}, Spec: corev1.NodeSpec{PodCIDRs: n.Spec.PodCIDRs}}, nil
	}
	return o, nil
}

// changes puts the names of nodes that need to be looked at into the queue.
func changes(own string, queue workqueue.TypedInterface[string]) cache.ResourceEventHandlerFuncs {
	add := func(o any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil && key != own {
			queue.Add(key)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: add,
		UpdateFunc: func(before, after any) {
			if a, b := before.(*corev1.Node), after.(*corev1.Node); len(a.Spec.PodCIDRs) != len(b.Spec.PodCIDRs) {
				add(after)
			}
		},
		DeleteFunc: add,
	}
}

// gateways are the addresses of a node's DNS server: the first of each of its pod networks, as the network makes them.
func gateways(store cache.Store, node string) []netip.Addr {
	o, there, _ := store.GetByKey(node)
	if !there {
		return nil
	}
	var all []netip.Addr
	for _, text := range o.(*corev1.Node).Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p.Masked().Addr().Next())
		}
	}
	return all
}
