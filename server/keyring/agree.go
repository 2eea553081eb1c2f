package keyring

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// found makes this server the cluster's first: its authorities, made if need be, become everybody's. It is not done when
// another server was faster.
func (k *Keyring) found(ctx context.Context, l local) (done bool, err error) {
	files, err := k.authorities(l)
	if err != nil {
		return false, err
	}
	token, undo, err := k.newToken(l)
	if err != nil {
		return false, err
	}
	c := contents{Files: files, Token: token, Settings: k.cfg.Settings}
	if err := k.checkHash(c); err != nil {
		undo()
		return false, err
	}
	r, err := newRecord(c, files[k.serviceKey()])
	if err != nil {
		return false, fmt.Errorf("seal what the servers share: %w", err)
	}
	if done, err = k.create(ctx, r); err != nil {
		return false, err
	}
	if !done {
		undo()
		return false, nil
	}
	l.token = token
	return true, k.install(c, l)
}

// create writes the record unless there is one. One that is there can be this one, when the datastore did the write and its
// answer was lost.
func (k *Keyring) create(ctx context.Context, r record) (done bool, err error) {
	if done, err = k.write(ctx, r, 0); done || err != nil {
		return done, err
	}
	there, _, err := k.read(ctx)
	return bytes.Equal(there.Sealed, r.Sealed), err
}

// adopt makes the cluster's files this server's, and tells the cluster when the user has set another token or other
// settings here. It is not done when another server has written meanwhile.
func (k *Keyring) adopt(ctx context.Context, l local, r record, revision int64) (done bool, err error) {
	c, dataKey, err := k.open(l, r)
	if err != nil {
		return false, err
	}
	if err := errors.Join(k.checkHash(c), k.checkAuthorities(c, l)); err != nil {
		return false, err
	}
	if len(l.files) == 0 {
		if err := Compare(k.cfg.Settings, c.Settings); err != nil {
			return false, err
		}
		k.log.Info("this server has joined the others", "datastore", k.cfg.Shown)
	}
	next := c
	if next.Token, err = k.token(c, l); err != nil {
		return false, err
	}
	next.Settings = k.cfg.Settings
	if next.Token != c.Token || !maps.Equal(next.Settings, c.Settings) {
		if done, err = k.change(ctx, r, revision, c, next, dataKey); !done || err != nil {
			return done, err
		}
	}
	return true, k.install(next, l)
}

// change writes other contents with the same key.
func (k *Keyring) change(ctx context.Context, r record, revision int64, old, next contents, dataKey []byte) (done bool, err error) {
	if next.Token != old.Token {
		if r.Locks, err = r.Locks.with(next.Token, dataKey); err != nil {
			return false, fmt.Errorf("seal what the servers share: %w", err)
		}
	}
	if err := r.put(next, dataKey); err != nil {
		return false, fmt.Errorf("seal what the servers share: %w", err)
	}
	return k.write(ctx, r, revision)
}

// open reads the contents with what this server has.
func (k *Keyring) open(l local, r record) (contents, []byte, error) {
	given := k.cfg.Token
	if given == "" {
		given = l.token
	}
	dataKey, by, err := r.Locks.open(secrets{token: given, authority: l.files[k.serviceKey()]})
	switch {
	case errors.Is(err, errWrongKey) && given == "":
		return contents{}, nil, fmt.Errorf("the datastore %s belongs to a cluster that has servers: give its token with --token, from server/server-token in the data directory of one of them", k.cfg.Shown)
	case errors.Is(err, errWrongKey):
		return contents{}, nil, fmt.Errorf("the token is not that of the servers on the datastore %s: give the one in server/server-token in the data directory of one of them with --token; one for nodes is not enough", k.cfg.Shown)
	case err != nil:
		return contents{}, nil, fmt.Errorf("open what the servers share in the datastore %s: %w", k.cfg.Shown, err)
	}
	c, err := r.get(dataKey)
	if err != nil {
		return c, nil, fmt.Errorf("open what the servers share in the datastore %s by the %s: %w", k.cfg.Shown, by, err)
	}
	return c, dataKey, nil
}

const changedElsewhere = "the servers' token was changed on another server"

// token is the one that the cluster is to have from now on: the cluster's, unless the user has set another one on this
// server since it last ran.
func (k *Keyring) token(c contents, l local) (string, error) {
	set := k.set()
	switch {
	case set == "" && l.token != "" && l.token != c.Token:
		k.log.Info(changedElsewhere)
		return c.Token, nil
	case set == "" || set == c.Token:
		return c.Token, nil
	case set == l.token:
		return "", errors.New("the token that is set here (--token) was changed on another server: set the same one here")
	}
	return set, nil
}

func (k *Keyring) checkHash(c contents) error {
	if k.cfg.CAHash == "" {
		return nil
	}
	hash, err := k.caHash(c)
	if err == nil && hash != k.cfg.CAHash {
		err = fmt.Errorf("the servers on the datastore %s are not those that the token is for (their authority has another hash): check --datastore-endpoint and --token", k.cfg.Shown)
	}
	return err
}

// checkAuthorities keeps what is on the disk from being lost.
func (k *Keyring) checkAuthorities(c contents, l local) error {
	for name, data := range l.files {
		if !bytes.Equal(bytes.TrimSpace(data), bytes.TrimSpace(c.Files[name])) {
			return fmt.Errorf("%s in %s is another than that of the servers on the datastore %s: this data directory is of another cluster; choose another one with --data-dir, or remove its directory server", name, k.cfg.PKI, k.cfg.Shown)
		}
	}
	return nil
}

// Compare names the settings that are not what the cluster's other servers have.
func Compare(mine, theirs map[string]string) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(mine)) {
		if mine[name] != theirs[name] {
			errs = append(errs, fmt.Errorf("--%s is %s here, and %s on the cluster's other servers: it has to be the same", name, mine[name], theirs[name]))
		}
	}
	return errors.Join(errs...)
}
