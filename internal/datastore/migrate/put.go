package migrate

import (
	"context"
	"fmt"
	"sync"

	"github.com/clusterd/clusterd/internal/datastore/engine"
)

// writers is how many keys are written at once where there is no transaction for all.
const writers = 16

// putAll writes keys by put, several at once. The first error ends it.
func putAll(ctx context.Context, records func(func(engine.Record) error) error, put func(context.Context, engine.Record) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	todo := make(chan engine.Record)
	var running sync.WaitGroup
	for range writers {
		running.Go(func() {
			for r := range todo {
				if err := put(ctx, r); err != nil {
					cancel(fmt.Errorf("put key: %w", err))
				}
			}
		})
	}
	err := records(func(r engine.Record) error {
		select {
		case todo <- r:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	close(todo)
	running.Wait()
	if err == nil {
		err = context.Cause(ctx)
	}
	return err
}
