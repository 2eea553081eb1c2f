package server

import (
	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/clusterd/clusterd/internal/datastore"
	"github.com/clusterd/clusterd/internal/datastore/endpoint"
	"github.com/clusterd/clusterd/internal/lifecycle"
)

// store is where the cluster's state is.
type store interface {
	lifecycle.Component
	// Client makes a client for an API server, once the store is ready.
	Client() (*kubernetes.Client, error)
}

// newStore makes the datastore that the user has chosen: a file, by default in the data directory, or one elsewhere.
func newStore(cfg Config, d Deps) (store, error) {
	if e := cfg.Datastore; e.Kind != "" && e.Kind != endpoint.SQLite {
		return datastore.NewElsewhere(e, d.Log), nil
	}
	path := cfg.Datastore.Path
	if path == "" {
		path = d.Dir.DB()
	}
	s, err := datastore.New(datastore.Config{Path: path}, d.Log)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// ownFile is whether the datastore is the file in the data directory.
func ownFile(cfg Config, d Deps) bool {
	e := cfg.Datastore
	return e.Kind == "" || e.Kind == endpoint.SQLite && (e.Path == "" || e.Path == d.Dir.DB())
}
