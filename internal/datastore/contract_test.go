package datastore_test

import (
	"io"
	"path/filepath"
	"testing"

	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/clusterd/clusterd/internal/datastore/contract"
)

// The store as the API server in this process reaches it.
func TestStoreContractWithoutConnection(t *testing.T) {
	s, _ := run(t, filepath.Join(t.TempDir(), "state.db"))
	contract.Run(t, contract.Store{Operations: operations(100000), Client: func(t *testing.T) *kubernetes.Client {
		c, err := s.Client()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}})
}

// The store by way of kine's bridge and gRPC, as tools that speak etcd's protocol reach it.
func TestStoreContractByGRPC(t *testing.T) {
	t.Setenv("ETCD_CLIENT_DEBUG", "fatal") // the client warns of every answer that is an error
	logrus.SetOutput(io.Discard)           // so does the bridge
	s, _ := run(t, filepath.Join(t.TempDir(), "state.db"))
	contract.Run(t, contract.Store{Operations: operations(20000), Seed: 1, Client: func(t *testing.T) *kubernetes.Client {
		c := &kubernetes.Client{Client: client(t, s)}
		c.Kubernetes = c
		return c
	}})
}

func operations(n int) int {
	if testing.Short() {
		return n / 10
	}
	return n
}
