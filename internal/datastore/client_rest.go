package datastore

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// directLease grants leases that are their own time to live: a key that is written with one goes that long after. API
// servers ask for nothing else; other calls panic by the nil interface.
type directLease struct{ clientv3.Lease }

// Grant returns a lease of ttl seconds.
func (directLease) Grant(_ context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	return &clientv3.LeaseGrantResponse{ResponseHeader: header(0), ID: clientv3.LeaseID(ttl), TTL: ttl}, nil
}

// Close does nothing.
func (directLease) Close() error { return nil }

// directMaintenance tells the store's size and version. Other calls panic by the nil interface.
type directMaintenance struct {
	clientv3.Maintenance
	db backend
}

// Status is what API servers show as metrics.
func (d directMaintenance) Status(ctx context.Context, _ string) (*clientv3.StatusResponse, error) {
	size, err := d.db.DbSize(ctx)
	if err != nil {
		return nil, clientError(err)
	}
	return &clientv3.StatusResponse{Header: &pb.ResponseHeader{}, Version: EtcdVersion, DbSize: size}, nil
}
