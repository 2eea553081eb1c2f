package keyring

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/clusterd/clusterd/internal/hostos"
)

// follow keeps the token of this server and that of the cluster the same until ctx ends: clusterd token rotate may have
// written another one here, or on another server.
func (k *Keyring) follow(ctx context.Context) {
	here := hostos.FileChanges(ctx, []string{k.cfg.TokenFile})
	for ctx.Err() == nil {
		k.followRecord(ctx, here)
		select {
		case <-ctx.Done():
		case <-time.After(retryPause):
		}
	}
}

// followRecord does so until ctx ends or the datastore tells no more of its changes.
func (k *Keyring) followRecord(ctx context.Context, here <-chan struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	there := k.store.Watch(clientv3.WithRequireLeader(ctx), key)
	for {
		// At first too: it may have been changed before it was watched.
		if err := k.settle(ctx); err != nil && ctx.Err() == nil {
			k.log.Warn("the servers' token is not the same on all of them: start this server again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-here:
		case r, ok := <-there:
			if !ok || r.Err() != nil {
				return
			}
		}
	}
}

// settle makes the token on the disk the cluster's when it was changed here, and else the cluster's the one on the disk.
func (k *Keyring) settle(ctx context.Context) error {
	for {
		r, revision, err := k.read(ctx)
		if err != nil {
			return err
		}
		l, err := k.local()
		if err != nil {
			return err
		}
		c, dataKey, err := k.open(l, r)
		if err != nil {
			return err
		}
		if l.token == c.Token {
			k.agreed = c.Token
			return nil
		}
		if l.token == "" || l.token == k.agreed {
			return k.take(c)
		}
		next := c
		next.Token = l.token
		done, err := k.change(ctx, r, revision, c, next, dataKey)
		if err != nil {
			return err
		}
		if !done {
			continue
		}
		k.agreed = next.Token
		if err := k.writeJoinToken(next); err != nil {
			return fmt.Errorf("write the token for further servers: %w", err)
		}
		k.log.Info("further servers are let in by the new token")
		return nil
	}
}

// take writes the cluster's token on the disk, where others read it. One that the user has set here is the user's to change.
func (k *Keyring) take(c contents) error {
	if k.set() != "" {
		if k.refused != c.Token {
			k.refused = c.Token
			k.log.Warn("the token that is set here (--token) was changed on another server: set the same one here")
		}
		return nil
	}
	if err := k.writeToken(c.Token); err != nil {
		return err
	}
	k.agreed = c.Token
	k.log.Info(changedElsewhere)
	return k.writeJoinToken(c)
}
