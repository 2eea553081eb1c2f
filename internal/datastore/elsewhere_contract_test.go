package datastore_test

import (
	"testing"

	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/clusterd/clusterd/internal/datastore/contract"
	"github.com/clusterd/clusterd/internal/testkit/databases"
)

// elsewhereOperations is fewer than for the store in the process: each waits for a database.
const elsewhereOperations = 2000

// TestContractElsewhere holds the databases to what API servers need.
func TestContractElsewhere(t *testing.T) {
	for name, start := range elsewhere {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, databases.Here(), 0)
			one := attach(t, server.Endpoint, &lines{})
			contract.Run(t, contract.Store{Client: func(*testing.T) *kubernetes.Client { return one }, Operations: elsewhereOperations, Kine: true})
		})
	}
}
