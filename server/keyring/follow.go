package keyring

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// follow seals the record for another token when clusterd token rotate has written one, until ctx ends.
func (k *Keyring) follow(ctx context.Context) error {
	notify, err := fsnotify.NewWatcher()
	if err == nil {
		defer notify.Close()
		err = notify.Add(filepath.Dir(k.cfg.TokenFile)) // the file itself is replaced, not changed
	}
	if err != nil {
		k.log.Warn("after clusterd token rotate start this server again, so that further servers are let in by the new token", "error", err)
		<-ctx.Done()
		return nil
	}
	k.tell(ctx) // it may have been changed before it was watched
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-notify.Events:
			if e.Name != k.cfg.TokenFile {
				continue
			}
		case <-notify.Errors: // events were lost
		}
		k.tell(ctx)
	}
}

// tell makes the token on the disk the cluster's.
func (k *Keyring) tell(ctx context.Context) {
	if err := k.retoken(ctx); err != nil && ctx.Err() == nil {
		k.log.Warn("further servers are not let in by the new token: start this server again", "error", err)
	}
}

func (k *Keyring) retoken(ctx context.Context) error {
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
		if err != nil || l.token == "" || l.token == c.Token {
			return err
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
		if err := k.writeJoinToken(next); err != nil {
			return fmt.Errorf("write the token for further servers: %w", err)
		}
		k.log.Info("further servers are let in by the new token")
		return nil
	}
}
