package datastore

import (
	"context"
	"log/slog"
	"time"

	"github.com/clusterd/clusterd/internal/datastore/endpoint"
	"github.com/clusterd/clusterd/internal/datastore/external"
)

// Elsewhere is a store outside the process, a lifecycle component. It is ready when the store answers, for which it waits.
type Elsewhere struct {
	clients
	endpoint endpoint.Endpoint
	log      *slog.Logger
}

// NewElsewhere returns a store that has not been connected to yet.
func NewElsewhere(e endpoint.Endpoint, log *slog.Logger) *Elsewhere {
	return &Elsewhere{endpoint: e, log: log, clients: clients{watches: newWatches()}}
}

// Name is the component's name in logs and errors.
func (s *Elsewhere) Name() string { return "datastore" }

// Run connects and calls ready when a write has come back as an event, and serves clients until ctx ends. API servers reach
// etcd themselves: with it, Run is ready when etcd answers, and there are no clients.
func (s *Elsewhere) Run(ctx context.Context, ready func()) error {
	began := time.Now()
	if s.endpoint.Kind == endpoint.Etcd {
		return s.runEtcd(ctx, ready)
	}
	db, err := external.Open(ctx, s.endpoint, s.log)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	defer db.Close()
	s.open(remote{db})
	defer s.open(nil)
	s.log.Info("datastore", "kind", s.endpoint.Kind, "endpoint", s.endpoint.String(), "revision", db.Current(), "took", time.Since(began).Round(time.Millisecond))
	reporting, stop := context.WithCancel(ctx)
	defer stop()
	go s.watches.report(reporting, defaultProgress)
	ready()
	select {
	case <-ctx.Done():
		return nil
	case err := <-db.Failed():
		return err
	}
}

func (s *Elsewhere) runEtcd(ctx context.Context, ready func()) error {
	if err := external.Wait(ctx, s.endpoint, s.log); err != nil {
		return unlessEnded(ctx, err)
	}
	s.log.Info("datastore", "kind", s.endpoint.Kind, "endpoint", s.endpoint.String())
	ready()
	<-ctx.Done()
	return nil
}

func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
