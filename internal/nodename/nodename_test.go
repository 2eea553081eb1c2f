package nodename_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"

	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/nodename"
)

func prepared(t *testing.T) datadir.Dir {
	t.Helper()
	dir, err := datadir.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(dir.NodeCertificates(), dir.NodeName()) {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func certificate(t *testing.T, name string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestKept(t *testing.T) {
	t.Parallel()
	dir := prepared(t)
	if got := nodename.Read(dir); got != "" {
		t.Errorf("an empty directory has the node name %q", got)
	}
	for _, name := range []string{"one", "two.example"} {
		if err := nodename.Keep(dir, name); err != nil {
			t.Fatal(err)
		}
		if got := nodename.Read(dir); got != name {
			t.Errorf("the name is %q, want %q", got, name)
		}
	}
}

// What a power cut has emptied is known from the certificates of a joined node, and of one in a server's process.
func TestEmptied(t *testing.T) {
	t.Parallel()
	for _, file := range []int{0, 1} {
		dir := prepared(t)
		if err := os.WriteFile(dir.NodeCertificates()[file], certificate(t, "system:node:one"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir.NodeName(), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := nodename.Read(dir); got != "one" {
			t.Errorf("%s: the name is %q", dir.NodeCertificates()[file], got)
		}
		if err := nodename.Keep(dir, "one"); err != nil {
			t.Fatal(err)
		}
		if kept, err := os.ReadFile(dir.NodeName()); err != nil || string(kept) != "one\n" {
			t.Errorf("the file has %q, %v", kept, err)
		}
	}
}

func TestDamaged(t *testing.T) {
	t.Parallel()
	dir := prepared(t)
	for i, data := range [][]byte{[]byte("no certificate"), certificate(t, "somebody")} {
		if err := os.WriteFile(dir.NodeCertificates()[i], data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := nodename.Read(dir); got != "" {
		t.Errorf("the name is %q", got)
	}
}
