// Package keyring lets the servers of a cluster that share a datastore have the same authorities, the same key for service
// accounts' tokens and the same token of their own.
//
// It promises that the first server's are everybody's, also when several start at once on an empty datastore; that who can
// read the datastore alone learns none of them; that a server which has been let in once is never locked out by another
// token; and that what is on a server's disk is not replaced by another cluster's. What is wrong is one line that says what
// to do, and then nothing was changed on the disk.
package keyring

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/clusterd/clusterd/internal/pki"
)

// key is the record's in the datastore, beside the API server's.
const key = "/clusterd/keyring"

const (
	// callTimeout bounds one call of the datastore, retryPause is between them.
	callTimeout = 10 * time.Second
	retryPause  = time.Second
)

// Store is the datastore, as far as it is needed here.
type Store interface {
	Get(ctx context.Context, key string, opts kubernetes.GetOptions) (kubernetes.GetResponse, error)
	OptimisticPut(ctx context.Context, key string, value []byte, expectedRevision int64, opts kubernetes.PutOptions) (kubernetes.PutResponse, error)
	Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan
}

// Config is what the component is made from. All fields are required unless marked optional.
type Config struct {
	// Open reaches the datastore, which is there; close is called in the end.
	Open func(ctx context.Context) (store Store, close func(), err error)
	// Shown is the datastore in messages.
	Shown string
	PKI   pki.Dir
	// TokenFile holds the servers' own secret; JoinTokenFile is written with the token that further servers are given.
	TokenFile, JoinTokenFile string
	// Token is the secret that the user has set; optional. CAHash is that of the authority that it is for; optional.
	Token, CAHash string
	// Joins is whether Token only lets this server in, at its first start: the secret is then set elsewhere.
	Joins bool
	// Settings are the options that have to be the same on all servers.
	Settings map[string]string
}

// Keyring is the component.
type Keyring struct {
	cfg   Config
	log   *slog.Logger
	store Store
	said  string // the last trouble with the datastore
	// agreed is the token that was the cluster's and this server's last; refused is one of the cluster's that the user has yet
	// to set here.
	agreed, refused string
}

// New makes the component. It does no I/O.
func New(cfg Config, log *slog.Logger) *Keyring { return &Keyring{cfg: cfg, log: log} }

// set is the secret that the user wants the cluster to have, or empty.
func (k *Keyring) set() string {
	if k.cfg.Joins {
		return ""
	}
	return k.cfg.Token
}

// Name is the component's name.
func (k *Keyring) Name() string { return "keyring" }

// Run is ready when this server's files are the cluster's. After that the token of one is that
// of the other, whichever changes.
func (k *Keyring) Run(ctx context.Context, ready func()) error {
	store, done, err := k.cfg.Open(ctx)
	if err != nil {
		return err
	}
	defer done()
	k.store = store
	if err := k.agree(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	ready()
	k.follow(ctx)
	return nil
}

// agree makes this server's files the cluster's, or the cluster's this server's.
func (k *Keyring) agree(ctx context.Context) error {
	for {
		have, revision, err := k.read(ctx)
		if err != nil {
			return err
		}
		mine, err := k.local()
		if err != nil {
			return err
		}
		var done bool
		if revision == 0 {
			done, err = k.found(ctx, mine)
		} else {
			done, err = k.adopt(ctx, mine, have, revision)
		}
		if done || err != nil {
			return err
		}
	}
}

// read reads the record; its revision is 0 when there is none.
func (k *Keyring) read(ctx context.Context) (r record, revision int64, err error) {
	var got kubernetes.GetResponse
	err = k.insist(ctx, func(ctx context.Context) (err error) {
		got, err = k.store.Get(ctx, key, kubernetes.GetOptions{})
		return err
	})
	if err != nil || got.KV == nil {
		return r, 0, err
	}
	if r, err = decode(got.KV.Value); err != nil {
		return r, 0, fmt.Errorf("read what the servers share in the datastore %s: %w", k.cfg.Shown, err)
	}
	return r, got.KV.ModRevision, nil
}

// write writes the record if it is still at the revision; 0 is for one that is not there.
func (k *Keyring) write(ctx context.Context, r record, revision int64) (done bool, err error) {
	data, err := json.Marshal(r)
	if err != nil {
		return false, err
	}
	err = k.insist(ctx, func(ctx context.Context) error {
		put, err := k.store.OptimisticPut(ctx, key, data, revision, kubernetes.PutOptions{})
		done = put.Succeeded
		return err
	})
	return done, err
}

// insist tries until the datastore answers or ctx ends. A write whose answer was lost is tried again too: it then fails for
// its revision, and who wrote is found out by reading.
func (k *Keyring) insist(ctx context.Context, try func(context.Context) error) error {
	for {
		bounded, cancel := context.WithTimeout(ctx, callTimeout)
		err := try(bounded)
		cancel()
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if text := err.Error(); text != k.said {
			k.said = text
			k.log.Warn("what the servers share waits for the datastore", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryPause):
		}
	}
}
