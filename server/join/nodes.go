package join

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/clusterd/clusterd/internal/tunnel"
)

// PublishDNS tells the cluster at which addresses a node's DNS server answers; none takes back what was told.
type PublishDNS func(ctx context.Context, node string, addrs []netip.Addr) error

// Nodes is the component that does what follows from nodes coming and going: it publishes their DNS servers, and lets the name
// of a node that was deleted go. It does the former for them because who may write the endpoints of the cluster's DNS could
// answer for all of it.
type Nodes struct {
	client     clientset.Interface
	identities identities
	own        string
	publish    PublishDNS
	log        *slog.Logger
	came       func(node string)

	queue    workqueue.TypedRateLimitingInterface[string]
	store    cache.Store
	informer cache.Controller
}

// NewNodes makes the component. The node called own publishes its DNS server by itself; without publish all do.
func NewNodes(config *rest.Config, own string, publish PublishDNS, log *slog.Logger) (*Nodes, error) {
	client, err := clientset.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the client for joined nodes: %w", err)
	}
	n := &Nodes{client: client, identities: identities{client: client, now: time.Now}, own: own, publish: publish, log: log, came: func(string) {}}
	n.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	n.store, n.informer = cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", "", fields.Everything()),
		ObjectType:    &corev1.Node{},
		Transform:     kept,
		Handler:       n.changes(),
	})
	return n, nil
}

// Follow has f, which must not block, called with the name of each joined node that comes. It has to be called before Run.
func (n *Nodes) Follow(f func(node string)) { n.came = f }

// Joined are the Nodes of other processes, as far as they are kept here.
func (n *Nodes) Joined() (all []*corev1.Node) {
	for _, o := range n.store.List() {
		if node := o.(*corev1.Node); node.Name != n.own {
			all = append(all, node)
		}
	}
	return all
}

// Name is the component's name.
func (n *Nodes) Name() string { return "joined nodes" }

// Run works until ctx ends. It is ready at once.
func (n *Nodes) Run(ctx context.Context, ready func()) error {
	go n.informer.RunWithContext(ctx)
	context.AfterFunc(ctx, n.queue.ShutDown)
	ready()
	for {
		name, end := n.queue.Get()
		if end {
			return nil
		}
		if err := n.follow(ctx, name); err != nil {
			n.log.Debug("node not followed yet", "node", name, "error", err)
			n.queue.AddRateLimited(name)
		} else {
			n.queue.Forget(name)
		}
		n.queue.Done(name)
	}
}

func (n *Nodes) follow(ctx context.Context, name string) error {
	_, there, _ := n.store.GetByKey(name)
	if !there {
		if err := n.identities.forget(ctx, name); err != nil {
			return err
		}
	}
	if n.publish == nil {
		return nil
	}
	return n.publish(ctx, name, gateways(n.store, name))
}

// kept is what of a Node is looked at here.
func kept(o any) (any, error) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	k := &corev1.Node{
		TypeMeta:   n.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion},
		Spec:       corev1.NodeSpec{PodCIDRs: n.Spec.PodCIDRs},
		Status:     corev1.NodeStatus{Addresses: n.Status.Addresses},
	}
	for _, c := range n.Status.Conditions {
		if c.Type == tunnel.Condition {
			k.Status.Conditions = append(k.Status.Conditions, c)
		}
	}
	return k, nil
}

// changes puts the names of nodes that need to be looked at into the queue.
func (n *Nodes) changes() cache.ResourceEventHandlerFuncs {
	add := func(o any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil && key != n.own {
			n.queue.Add(key)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			add(o)
			if node, ok := o.(*corev1.Node); ok && node.Name != n.own {
				n.came(node.Name)
			}
		},
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

// Of is the node that has the address, itself or for a pod.
func (n *Nodes) Of(address netip.Addr) (node string, found bool) {
	for _, o := range n.store.List() {
		node := o.(*corev1.Node)
		pods := func(text string) bool { p, err := netip.ParsePrefix(text); return err == nil && p.Contains(address) }
		if slices.Contains(internal(node), address) || slices.ContainsFunc(node.Spec.PodCIDRs, pods) {
			return node.Name, true
		}
	}
	return "", false
}

// internal are the addresses of a node in its own network.
func internal(n *corev1.Node) (all []netip.Addr) {
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			all = append(all, ip)
		}
	}
	return all
}
