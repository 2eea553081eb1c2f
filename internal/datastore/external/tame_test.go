package external_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/clusterd/clusterd/internal/datastore/endpoint"
	"github.com/clusterd/clusterd/internal/datastore/external"
)

// TestParseWhileWaiting is for the race detector: one store starts while the endpoint of another is read.
func TestParseWhileWaiting(t *testing.T) {
	at, err := endpoint.Parse("postgres://u:p@127.0.0.1:1/kine", endpoint.Files{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error)
	go func() { waited <- external.Wait(ctx, at, slog.New(slog.DiscardHandler)) }()
	if _, err := endpoint.Parse("mysql://u:p@tcp(127.0.0.1:1)/kine", endpoint.Files{}); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-waited; err == nil {
		t.Error("an endpoint without a server answered")
	}
}
