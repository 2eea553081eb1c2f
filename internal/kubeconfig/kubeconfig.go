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
	"strings"

	"github.com/clusterd/clusterd/internal/atomicfile"
)

// Config is one cluster, one user and the context that joins them.
type Config struct {
	// Server is the URL of the API server. Required.
	Server string
	// CA is the PEM bundle that the server's certificate is checked against.
	// Required.
	CA []byte
	// Cert and Key are the client's, PEM. Either both or none: without them the
	// file names a cluster but nobody to be.
	Cert, Key []byte
	// Name is that of cluster, user and context. Empty means "default".
	Name string
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
	case (len(c.Cert) == 0) != (len(c.Key) == 0):
		return errors.New("a client certificate needs its key, and a key its certificate")
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
	name := c.Name
	if name == "" {
		name = "default"
	}
	name = strconv.QuoteToASCII(name)
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Config\ncurrent-context: %s\n", name)
	fmt.Fprintf(&b, "clusters:\n- name: %s\n  cluster:\n    server: %s\n    certificate-authority-data: %s\n",
		name, strconv.QuoteToASCII(c.Server), encode(c.CA))
	fmt.Fprintf(&b, "contexts:\n- name: %s\n  context:\n    cluster: %s\n    user: %s\n", name, name, name)
	if len(c.Cert) == 0 {
		fmt.Fprintf(&b, "users:\n- name: %s\n  user: {}\n", name)
		return []byte(b.String())
	}
	fmt.Fprintf(&b, "users:\n- name: %s\n  user:\n    client-certificate-data: %s\n    client-key-data: %s\n",
		name, encode(c.Cert), encode(c.Key))
	return []byte(b.String())
}

func encode(pem []byte) string { return base64.StdEncoding.EncodeToString(pem) }
