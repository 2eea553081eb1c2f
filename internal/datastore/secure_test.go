package datastore_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/clusterd/clusterd/internal/datastore"
	"github.com/clusterd/clusterd/internal/datastore/endpoint"
	"github.com/clusterd/clusterd/internal/testkit/databases"
)

// TestElsewhereSecure connects with certificates, and does not without, or to one that another authority has signed.
func TestElsewhereSecure(t *testing.T) {
	for name, start := range map[string]func(testing.TB, databases.Machine, int, databases.Certificates) *databases.Server{
		"PostgreSQL": databases.SecurePostgres, "etcd": databases.SecureEtcd,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			right, other := databases.NewCertificates(t, databases.Here()), databases.NewCertificates(t, databases.Here())
			at := start(t, databases.Here(), 0, right).Endpoint
			files := endpoint.Files{CA: right.CA, Cert: right.ClientCert, Key: right.ClientKey}
			if log, ready := tryOut(t, at, files, patience); !ready {
				t.Errorf("not ready: %s", log)
			}
			files.CA = other.CA
			if log, ready := tryOut(t, at, files, 5*time.Second); ready || !strings.Contains(log, "waiting for the datastore") && !strings.Contains(log, "datastore "+at) {
				t.Errorf("with another authority: ready %v, %s", ready, log)
			}
			files = endpoint.Files{CA: right.CA, Cert: other.ClientCert, Key: other.ClientKey}
			if log, ready := tryOut(t, at, files, 5*time.Second); ready {
				t.Errorf("with another's certificate: %s", log)
			}
		})
	}
}

// tryOut runs a store until it is ready or the time is over, and returns what it says.
func tryOut(t *testing.T, at string, files endpoint.Files, limit time.Duration) (log string, ready bool) {
	t.Helper()
	e, err := endpoint.Parse(at, files)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	said := &lines{}
	err = datastore.NewElsewhere(e, slog.New(slog.NewTextHandler(said, nil))).Run(ctx, func() {
		ready = true
		cancel()
	})
	if err != nil {
		return said.String() + err.Error(), ready
	}
	return said.String(), ready
}
