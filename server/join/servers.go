package join

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/clusterd/clusterd/internal/join"
)

// kubernetesService is the Service of the API servers, whose endpoints each of them keeps its own address in while it lives.
const kubernetesService = "kubernetes"

// servers are those of the cluster: the endpoints of the Service kubernetes. A nil one knows of none.
type servers struct {
	client clientset.Interface

	mu  sync.Mutex
	all []string // host and port, sorted
}

func newServers(client clientset.Interface) *servers { return &servers{client: client} }

// follow calls changed whenever there are other servers, until ctx ends.
func (s *servers) follow(ctx context.Context, changed func()) {
	kick := make(chan struct{}, 1)
	learn := func(o any) {
		if slice, ok := o.(*discovery.EndpointSlice); ok && s.learn(slice) {
			select {
			case kick <- struct{}{}:
			default:
			}
		}
	}
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, kubernetesService)
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(s.client.DiscoveryV1().RESTClient(), "endpointslices", metav1.NamespaceDefault, only),
		ObjectType:    &discovery.EndpointSlice{},
		Handler:       cache.ResourceEventHandlerFuncs{AddFunc: learn, UpdateFunc: func(_, now any) { learn(now) }},
	})
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { informer.RunWithContext(ctx) })
	for {
		select {
		case <-ctx.Done():
			return
		case <-kick:
			changed()
		}
	}
}

// learn is whether the slice has other servers than were known. None at all are not believed: one has told of them.
func (s *servers) learn(slice *discovery.EndpointSlice) bool {
	var all []string
	for _, e := range slice.Endpoints {
		for _, a := range e.Addresses {
			for _, p := range slice.Ports {
				if p.Port != nil {
					all = append(all, net.JoinHostPort(a, strconv.Itoa(int(*p.Port))))
				}
			}
		}
	}
	slices.Sort(all)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(all) == 0 || slices.Equal(all, s.all) {
		return false
	}
	s.all = all
	return true
}

// known are the servers, none before they are known.
func (s *servers) known() []string {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
}

// has is whether an address is that of a server.
func (s *servers) has(address string) bool {
	a, err := netip.ParseAddr(address)
	return err == nil && slices.ContainsFunc(s.known(), func(server string) bool {
		at, err := netip.ParseAddrPort(server)
		return err == nil && at.Addr().Unmap() == a.Unmap()
	})
}

// begin takes those that the nodes were told of, and more, for the servers until there is better knowledge.
func (s *servers) begin(told *corev1.ConfigMap, more []string) []string {
	all := slices.Clone(more)
	if before, err := join.Decode([]byte(told.Data[join.InfoKey])); err == nil {
		all = append(all, before.Servers...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == 0 {
		s.all = all
	}
	return slices.Clone(s.all)
}
