package migrate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/clusterd/clusterd/internal/datastore/endpoint"
)

func openSource(ctx context.Context, e endpoint.Endpoint, log *slog.Logger) (source, error) {
	switch e.Kind {
	case endpoint.SQLite:
		if e.Path == "" {
			return nil, errors.New("the file has no path")
		}
		return openFile(ctx, e.Path)
	case endpoint.Postgres, endpoint.MySQL:
		return openKine(ctx, e, log)
	case endpoint.NATS:
		keys, err := openNATS(ctx, e, log)
		if err != nil {
			return nil, err
		}
		return keys, nil
	case endpoint.Etcd:
		keys, err := openEtcd(ctx, e, log)
		if err != nil {
			return nil, err
		}
		return keys, nil
	}
	return nil, fmt.Errorf("%s cannot be copied", e.Kind)
}

func openTarget(ctx context.Context, e endpoint.Endpoint, from string, log *slog.Logger) (target, error) {
	switch e.Kind {
	case endpoint.SQLite:
		if e.Path == "" {
			return nil, errors.New("the file has no path")
		}
		return openFileTarget(ctx, e.Path)
	case endpoint.Postgres, endpoint.MySQL:
		return openDatabase(ctx, e, log)
	case endpoint.NATS:
		return openNATSTarget(ctx, e, from, log)
	case endpoint.Etcd:
		return openEtcdTarget(ctx, e, from, log)
	}
	return nil, fmt.Errorf("%s cannot be copied to", e.Kind)
}
