package databases

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Certificates are PEM files of a machine, signed by CA: those of a server on 127.0.0.1, and of the client called clusterd.
type Certificates struct{ CA, ServerCert, ServerKey, ClientCert, ClientKey string }

// NewCertificates makes an authority on m, and what it signs. The keys can be read by the servers' user.
func NewCertificates(t testing.TB, m Machine) Certificates {
	t.Helper()
	dir := folder(t, m, "tls")
	path := func(name string) string { return filepath.Join(dir, name) }
	c := Certificates{path("ca.crt"), path("server.crt"), path("server.key"), path("client.crt"), path("client.key")}
	issue := func(t testing.TB, template, parent *x509.Certificate, signer *ecdsa.PrivateKey, certFile, keyFile string) *ecdsa.PrivateKey {
		return issue(t, template, parent, signer, m.Path(certFile), m.Path(keyFile))
	}
	authority := &x509.Certificate{Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	signer := issue(t, authority, nil, nil, c.CA, path("ca.key"))
	issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "server"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, authority, signer, c.ServerCert, c.ServerKey)
	issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "clusterd"}}, authority, signer, c.ClientCert, c.ClientKey)
	return c
}

// issue writes a certificate, signed by itself without a parent, and its key.
func issue(t testing.TB, template, parent *x509.Certificate, signer *ecdsa.PrivateKey, certFile, keyFile string) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if parent == nil {
		parent, signer = template, key
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(file, unprivileged, unprivileged); err != nil {
			t.Fatal(err)
		}
	}
	return key
}
