package upstream

import (
	"sync"
	_ "unsafe" // for go:linkname

	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	// The package of the variable that is replaced.
	_ "k8s.io/apiserver/pkg/storage/storagebackend/factory"
)

// newETCD3Client is how API servers get a client for each of their resources. Upstream has no other place to give them one
// that is not a connection. The linker does not compare the types: TestStorage does.
//
//go:linkname newETCD3Client k8s.io/apiserver/pkg/storage/storagebackend/factory.newETCD3Client
var newETCD3Client func(storagebackend.TransportConfig) (*kubernetes.Client, error)

// stores are the stores in this process by the name that an API server has for its etcd server.
var stores struct {
	sync.Mutex
	clients map[string]func() (*kubernetes.Client, error)
}

// Store gives API servers whose etcd server is called endpoint the clients that client makes, instead of connections.
func Store(endpoint string, client func() (*kubernetes.Client, error)) {
	stores.Lock()
	defer stores.Unlock()
	if stores.clients == nil {
		stores.clients = map[string]func() (*kubernetes.Client, error){}
		connect := newETCD3Client
		newETCD3Client = func(c storagebackend.TransportConfig) (*kubernetes.Client, error) {
			if client := storeOf(c.ServerList); client != nil {
				return client()
			}
			return connect(c)
		}
		feature.DefaultFeatureSupportChecker = direct{feature.DefaultFeatureSupportChecker}
	}
	stores.clients[endpoint] = client
}

func storeOf(servers []string) func() (*kubernetes.Client, error) {
	stores.Lock()
	defer stores.Unlock()
	if len(servers) != 1 {
		return nil
	}
	return stores.clients[servers[0]]
}

// direct knows what the clients of Store can do. They have no endpoint that upstream could ask.
type direct struct{ feature.FeatureSupportChecker }

// Supports is what API servers choose their ways by.
func (d direct) Supports(f storage.Feature) bool {
	switch f {
	case storage.RequestWatchProgress:
		return true
	case storage.RangeStream:
		return false
	}
	return d.FeatureSupportChecker.Supports(f)
}
