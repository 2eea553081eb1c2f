package keyring

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/clusterd/clusterd/internal/atomicfile"
	"github.com/clusterd/clusterd/internal/join"
	"github.com/clusterd/clusterd/internal/pki"
)

// local is what this server has on its disk of what servers share.
type local struct {
	files map[string][]byte
	token string
}

// local reads it.
func (k *Keyring) local() (local, error) {
	l := local{files: map[string][]byte{}}
	for _, path := range k.cfg.PKI.Lasting() {
		data, err := readIfThere(path)
		if err != nil {
			return l, fmt.Errorf("read what the servers share: %w", err)
		}
		if data != nil {
			l.files[filepath.Base(path)] = data
		}
	}
	token, err := readIfThere(k.cfg.TokenFile)
	if err != nil {
		return l, fmt.Errorf("read the server token: %w", err)
	}
	l.token = string(bytes.TrimSpace(token))
	return l, nil
}

func readIfThere(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// serviceKey is the name of the file that a server which was let in opens the record by.
func (k *Keyring) serviceKey() string { return filepath.Base(k.cfg.PKI.ServiceKey()) }

// authorities are the files of l, and those that are missing made anew, beside the directory that they belong into: they
// count only when no other server was faster.
func (k *Keyring) authorities(l local) (map[string][]byte, error) {
	dir, err := os.MkdirTemp(filepath.Dir(string(k.cfg.PKI)), "tls-new-")
	if err != nil {
		return nil, fmt.Errorf("make the cluster's authorities: %w", err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // the next start's are in another one
	for name, data := range l.files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return nil, fmt.Errorf("make the cluster's authorities: %w", err)
		}
	}
	made, err := pki.Open(dir, pki.Options{Log: k.log})
	if err != nil {
		return nil, err
	}
	all := map[string][]byte{}
	for _, path := range made.Lasting() {
		if all[filepath.Base(path)], err = os.ReadFile(path); err != nil {
			return nil, fmt.Errorf("make the cluster's authorities: %w", err)
		}
	}
	return all, nil
}

// newToken is the secret of a first server. It is on the disk before the datastore is written: without it no further server
// could be let in.
func (k *Keyring) newToken(l local) (token string, undo func(), err error) {
	token, undo = k.set(), func() {}
	switch {
	case token == "" && l.token != "", token != "" && token == l.token:
		return l.token, undo, nil
	case token == "":
		token = rand.Text()
		undo = func() { _ = os.Remove(k.cfg.TokenFile) } // one that is left opens nothing, which the next start says
	}
	return token, undo, k.writeToken(token)
}

func (k *Keyring) writeToken(token string) error {
	if err := atomicfile.WriteDurable(k.cfg.TokenFile, 0o600, []byte(token+"\n")); err != nil {
		return fmt.Errorf("write the server token: %w", err)
	}
	return nil
}

// install puts what the servers share on this server's disk, where it is not there already.
func (k *Keyring) install(c contents, l local) error {
	if err := os.MkdirAll(string(k.cfg.PKI), 0o700); err != nil {
		return fmt.Errorf("make certificate directory: %w", err)
	}
	for name, data := range c.Files {
		if bytes.Equal(l.files[name], data) {
			continue
		}
		mode := fs.FileMode(0o644)
		if strings.HasSuffix(name, ".key") {
			mode = 0o600
		}
		if err := atomicfile.WriteDurable(filepath.Join(string(k.cfg.PKI), filepath.Base(name)), mode, data); err != nil {
			return fmt.Errorf("write what the servers share: %w", err)
		}
	}
	if c.Token != l.token {
		if err := k.writeToken(c.Token); err != nil {
			return err
		}
	}
	k.agreed = c.Token
	return k.writeJoinToken(c)
}

// writeJoinToken writes the token for further servers. Unlike that for nodes it has the secret itself.
func (k *Keyring) writeJoinToken(c contents) error {
	hash, err := k.caHash(c)
	if err != nil {
		return err
	}
	return atomicfile.Write(k.cfg.JoinTokenFile, 0o600, []byte(join.Whole(hash, c.Token)+"\n"))
}

// caHash is that of the servers' authority.
func (k *Keyring) caHash(c contents) (string, error) {
	path, _ := k.cfg.PKI.Path(pki.ServerCA)
	block, _ := pem.Decode(c.Files[filepath.Base(path)])
	if block == nil {
		return "", errors.New("the servers' authority is not PEM")
	}
	ca, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", fmt.Errorf("read the servers' authority: %w", err)
	}
	return join.HashOf(ca), nil
}
