package upstream_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/api/apitesting"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/utils/clock"

	"github.com/clusterd/clusterd/internal/datastore"
)

// storedPrefix is what upstream's transformer for tests puts before each value.
const storedPrefix = "test!"

// connection is a way to reach a store.
type connection func(*testing.T, *datastore.Store) *kubernetes.Client

func direct(t *testing.T, s *datastore.Store) *kubernetes.Client {
	c, err := s.Client()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func byGRPC(t *testing.T, s *datastore.Store) *kubernetes.Client {
	t.Setenv("ETCD_CLIENT_DEBUG", "fatal")
	logrus.SetOutput(io.Discard)
	c, err := kubernetes.New(clientv3.Config{
		Endpoints: []string{"http://datastore"},
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return s.Dial(ctx)
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// etcd3Store is upstream's store of objects, as its own tests have it, on clusterd's datastore.
type etcd3Store struct {
	storage.Interface
	client      *kubernetes.Client
	codec       runtime.Codec
	transformer *replaceable
	kv          *storagetesting.KVRecorder
	lists       *storagetesting.KubernetesRecorder
	estimate    func() error // makes it keep count of sizes
	turn        int64        // of compaction
}

// replaceable is a transformer that tests can put another one in the place of.
type replaceable struct {
	mu sync.Mutex
	value.Transformer
}

func (r *replaceable) get() value.Transformer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Transformer
}

func (r *replaceable) set(by value.Transformer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Transformer = by
}

func (r *replaceable) TransformFromStorage(ctx context.Context, data []byte, c value.Context) ([]byte, bool, error) {
	return r.get().TransformFromStorage(ctx, data, c)
}

func (r *replaceable) TransformToStorage(ctx context.Context, data []byte, c value.Context) ([]byte, error) {
	return r.get().TransformToStorage(ctx, data, c)
}

// UpdatePrefixTransformer is how upstream's tests make reading or writing fail.
func (s *etcd3Store) UpdatePrefixTransformer(modify storagetesting.PrefixTransformerModifier) func() {
	original := s.transformer.get().(*storagetesting.PrefixTransformer)
	s.transformer.set(modify(storagetesting.NewPrefixTransformer([]byte(storedPrefix), false)))
	return func() { s.transformer.set(original) }
}

// newEtcd3Store starts a datastore and upstream's store on it.
func newEtcd3Store(t *testing.T, connect connection) *etcd3Store {
	t.Helper()
	client := connect(t, startDatastore(t))
	s := &etcd3Store{client: client, lists: storagetesting.NewKubernetesRecorder(client.Kubernetes)}
	s.kv = storagetesting.NewKVRecorder(client.KV, s.lists)
	client.KV, client.Kubernetes = s.kv, s.lists
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
	s.codec = apitesting.TestCodec(serializer.NewCodecFactory(scheme), examplev1.SchemeGroupVersion)
	s.transformer = &replaceable{Transformer: storagetesting.NewPrefixTransformer([]byte(storedPrefix), false)}
	leases := etcd3.NewDefaultLeaseManagerConfig()
	leases.ReuseDurationSeconds = 1 // tests wait for keys to go
	compactor := etcd3.NewCompactor(client.Client, 0, clock.RealClock{}, nil)
	t.Cleanup(compactor.Stop)
	versioner := storage.APIObjectVersioner{}
	store, err := etcd3.New(client, compactor, s.codec, func() runtime.Object { return &example.Pod{} }, func() runtime.Object { return &example.PodList{} },
		"", "/pods/", schema.GroupResource{Resource: "pods"}, s.transformer, leases, etcd3.NewDefaultDecoder(s.codec, versioner), versioner)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	s.Interface = store
	s.estimate = func() error {
		return store.EnableResourceSizeEstimation(func(ctx context.Context) ([]string, error) {
			var keys []string
			r, err := client.KV.Get(ctx, "/pods/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
			if err == nil {
				for _, kv := range r.Kvs {
					keys = append(keys, string(kv.Key))
				}
			}
			return keys, err
		})
	}
	return s
}

func startDatastore(t *testing.T) *datastore.Store {
	t.Helper()
	s, err := datastore.New(datastore.Config{Path: filepath.Join(t.TempDir(), "state.db"), Progress: time.Second}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- s.Run(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-ended:
		ended <- nil
		t.Fatalf("ended before ready: %v", err)
	}
	return s
}
