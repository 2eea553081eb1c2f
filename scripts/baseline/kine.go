package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/k3s-io/kine/pkg/endpoint"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// kine serves the database at the data source name on a unix socket with the defaults of kine's own command, and its
// metrics by HTTP.
func kine(source, listener, metrics string) error {
	_, err := endpoint.Listen(context.Background(), endpoint.Config{
		Endpoint:            source,
		Listener:            listener,
		NotifyInterval:      5 * time.Second,
		EmulatedETCDVersion: "3.6.0",
		CompactInterval:     5 * time.Minute,
		CompactTimeout:      5 * time.Second,
		CompactMinRetain:    1000,
		CompactBatchSize:    1000,
		PollBatchSize:       500,
		PollInterval:        time.Second,
	})
	if err != nil {
		return fmt.Errorf("serve %s: %w", listener, err)
	}
	return http.ListenAndServe(metrics, promhttp.Handler())
}
