package upstream_test

import (
	"errors"
	"testing"

	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"github.com/clusterd/clusterd/internal/upstream"
)

// TestStore fails when upstream gets its clients from elsewhere, or by a function of another type.
func TestStore(t *testing.T) {
	ours := errors.New("our function was called")
	upstream.Store("http://store-of-test", func() (*kubernetes.Client, error) { return nil, ours })
	create := func(server string) error {
		_, err := factory.CreateProber(storagebackend.Config{Transport: storagebackend.TransportConfig{ServerList: []string{server}, KeyFile: "/none", CertFile: "/none"}})
		return err
	}
	if err := create("http://store-of-test"); !errors.Is(err, ours) {
		t.Errorf("a client for our store: %v", err)
	}
	if err := create("http://elsewhere"); err == nil || errors.Is(err, ours) {
		t.Errorf("a client for another store: %v", err)
	}
	supports := feature.DefaultFeatureSupportChecker.Supports
	if !supports(storage.RequestWatchProgress) || supports(storage.RangeStream) {
		t.Error("the store's abilities are not known")
	}
}
