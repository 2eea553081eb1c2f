// Package kubeconfig writes the files with which clients reach the cluster.
//
// A file is replaced in one step, never holds half a credential, and is left
// alone when it already says the right thing, so that clients which watch it are
// not woken for nothing.
package kubeconfig

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"github.com/clusterd/clusterd/internal/atomicfile"
)

// Config is one cluster, one user and the context that joins them.
type Config struct {
	// Server is the URL of the API server. Required.
	Server string
	// CA is the PEM bundle that the server's certificate is checked against.
	// Required.
	CA []byte
	// Cert and Key are the client's, PEM. Required.
	Cert, Key []byte
}

// Write puts c at path, with exactly the given mode, in one atomic step. The
// directory must exist. It changes nothing when content and mode are already so.
func Write(path string, mode fs.FileMode, c Config) error {
	if err := c.validate(); err != nil {
		return fmt.Errorf("write kubeconfig %s: %w", path, err)
	}
	data := c.marshal()
	if same(path, mode, data) {
		return nil
	}
	if err := atomicfile.Write(path, mode, data); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

func (c Config) validate() error {
	switch {
	case c.Server == "":
		return errors.New("no server URL")
	case len(c.CA) == 0:
		return errors.New("no CA certificate")
	case len(c.Cert) == 0:
		return errors.New("no client certificate")
	case len(c.Key) == 0:
		return errors.New("no client key")
	}
	return nil
}

func same(path string, mode fs.FileMode, data []byte) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != mode {
		return false
	}
	old, err := os.ReadFile(path)
	return err == nil && bytes.Equal(old, data)
}

// marshal is plain text on purpose: the file has one fixed shape, and people
// read it.
func (c Config) marshal() []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: default
clusters:
- name: default
  cluster:
    server: %s
    certificate-authority-data: %s
contexts:
- name: default
  context:
    cluster: default
    user: default
users:
- name: default
  user:
    client-certificate-data: %s
    client-key-data: %s
`, strconv.QuoteToASCII(c.Server), encode(c.CA), encode(c.Cert), encode(c.Key))
}

func encode(pem []byte) string { return base64.StdEncoding.EncodeToString(pem) }
