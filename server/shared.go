package server

import (
	"context"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/clusterd/clusterd/internal/datastore/endpoint"
	"github.com/clusterd/clusterd/internal/datastore/external"
	protocol "github.com/clusterd/clusterd/internal/join"
	"github.com/clusterd/clusterd/internal/upstream"
	"github.com/clusterd/clusterd/server/keyring"
)

func newKeyring(cfg Config, d Deps, s store) *keyring.Keyring {
	return keyring.New(keyring.Config{
		Open:      func(ctx context.Context) (keyring.Store, func(), error) { return openStore(ctx, cfg, s) },
		Shown:     cfg.Datastore.String(),
		PKI:       d.PKI,
		TokenFile: d.Dir.ServerToken(), JoinTokenFile: d.Dir.ServerJoinToken(),
		Token: cfg.Token, CAHash: cfg.CAHash, Joins: cfg.Join != "",
		Settings: settings(cfg),
	}, d.Log)
}

// openStore is a client of the datastore, which is ready.
func openStore(ctx context.Context, cfg Config, s store) (keyring.Store, func(), error) {
	if cfg.Datastore.Kind != endpoint.Etcd {
		c, err := s.Client()
		if err != nil {
			return nil, nil, err
		}
		return shared{c.Kubernetes, c.Watcher}, func() { _ = c.Close() }, nil
	}
	c, err := external.DialEtcd(context.WithoutCancel(ctx), cfg.Datastore)
	if err != nil {
		return nil, nil, err
	}
	return shared{&kubernetes.Client{Client: c}, c.Watcher}, func() { _ = c.Close() }, nil
}

// shared is what the keyring needs of a client.
type shared struct {
	kubernetes.Interface
	clientv3.Watcher
}

// settings are the options that have to be the same on all servers.
func settings(cfg Config) map[string]string {
	return describe(protocol.Info{
		ClusterCIDRs: cfg.ClusterCIDRs, ServiceCIDRs: cfg.ServiceCIDRs, ClusterDNS: cfg.ClusterDNS,
		ClusterDomain: cfg.ClusterDomain, FlannelBackend: cfg.FlannelBackend,
	})
}

func describe(i protocol.Info) map[string]string {
	return map[string]string{
		"cluster-cidr": upstream.Join(i.ClusterCIDRs), "service-cidr": upstream.Join(i.ServiceCIDRs), "cluster-dns": upstream.Join(i.ClusterDNS),
		"cluster-domain": i.ClusterDomain, "flannel-backend": i.FlannelBackend,
	}
}

// CheckAgainst compares the configuration with that of a cluster which this server is to join.
func (c Config) CheckAgainst(cluster protocol.Info) error {
	return keyring.Compare(settings(c), describe(cluster))
}

// JoinToken is the token as the servers at Join know it.
func (c Config) JoinToken() (protocol.Token, error) {
	if c.Token == "" {
		return protocol.Token{}, fmt.Errorf("this machine is not a server of the cluster yet: give the token from server/server-token in the data directory of the server at %s with --token", strings.TrimPrefix(c.Join, "https://"))
	}
	t := protocol.Split(c.Token)
	t.CAHash = c.CAHash
	return t, nil
}
