package nodewatch

import (
	"context"
	"fmt"
	"reflect"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Nodes follows all Nodes, or one of them, and remembers what it saw last while the API is away. All Nodes may be watched
// by few users; a node's own is none of them.
type Nodes struct {
	store      cache.Store
	controller cache.Controller
}

// NewNodes returns a Nodes that follows the Node called only, all when it is empty. keep makes the part of a Node that
// stays in memory. changed is called after each change of what is kept, and must not block.
func NewNodes(c clientset.Interface, only string, keep func(*v1.Node) *v1.Node, changed func()) *Nodes {
	n := &Nodes{}
	n.store, n.controller = cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: listWatch(c, only),
		ObjectType:    &v1.Node{},
		Transform: func(o any) (any, error) {
			node, is := o.(*v1.Node)
			if !is {
				return nil, fmt.Errorf("watch nodes: got a %T", o)
			}
			return keep(node), nil
		},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { changed() },
			DeleteFunc: func(any) { changed() },
			UpdateFunc: func(before, after any) {
				if !reflect.DeepEqual(unversioned(before), unversioned(after)) {
					changed()
				}
			},
		},
	})
	return n
}

// unversioned is a Node without what every heartbeat changes.
func unversioned(o any) v1.Node {
	n := *o.(*v1.Node)
	n.ResourceVersion = ""
	return n
}

func listWatch(c clientset.Interface, only string) *cache.ListWatch {
	selector := ""
	if only != "" {
		selector = fields.OneTermEqualSelector("metadata.name", only).String()
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return c.CoreV1().Nodes().List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return c.CoreV1().Nodes().Watch(ctx, o)
		},
	}
}

// Run follows the Nodes until ctx ends.
func (n *Nodes) Run(ctx context.Context) { n.controller.RunWithContext(ctx) }

// Synced is closed when List has all Nodes for the first time, which may be none.
func (n *Nodes) Synced() <-chan struct{} { return n.controller.HasSyncedChecker().Done() }

// List returns what was kept of each Node, in no order. The caller must not change it.
func (n *Nodes) List() []*v1.Node {
	var all []*v1.Node
	for _, o := range n.store.List() {
		all = append(all, o.(*v1.Node))
	}
	return all
}
