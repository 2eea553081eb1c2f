package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority is a certificate that signs others.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// identity is one certificate to make: the file's name, the user and its groups.
type identity struct {
	file, user string
	groups     []string
}

// identities are the users of the cluster; each also gets a kubeconfig FILE.yaml.
func identities(host string) []identity {
	return []identity{
		{"apiserver", "kube-apiserver", nil},
		{"apikubelet", "apiserver-kubelet-client", []string{"system:masters"}},
		{"admin", "admin", []string{"system:masters"}},
		{"kcm", "system:kube-controller-manager", nil},
		{"sched", "system:kube-scheduler", nil},
		{"node", "system:node:" + host, []string{"system:nodes"}},
		{"proxy", "system:kube-proxy", nil},
	}
}

// writePKI makes the authorities, certificates and kubeconfigs of the cluster in dir.
func writePKI(dir, host string, ip net.IP) error {
	root, err := issue(dir, identity{file: "ca", user: "ca"}, nil, ip)
	if err != nil {
		return err
	}
	front, err := issue(dir, identity{file: "front", user: "front-ca"}, nil, ip)
	if err != nil {
		return err
	}
	if _, err := issue(dir, identity{file: "frontclient", user: "front-proxy-client"}, front, ip); err != nil {
		return err
	}
	if _, err := issue(dir, identity{file: "sa", user: "sa"}, root, ip); err != nil {
		return err
	}
	for _, id := range identities(host) {
		if _, err := issue(dir, id, root, ip); err != nil {
			return err
		}
		if err := writeFile(dir, id.file+".yaml", kubeconfig(dir, id.file, ip)); err != nil {
			return err
		}
	}
	return nil
}

// issue writes dir/FILE.crt and .key, signed by the given authority; without one the certificate is an authority.
func issue(dir string, id identity, by *authority, ip net.IP) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of %s: %w", id.file, err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: id.user, Organization: id.groups},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().AddDate(1, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		DNSNames:     []string{"localhost", id.user, "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		IPAddresses:  []net.IP{ip, net.IPv4(127, 0, 0, 1), net.IPv4(10, 43, 0, 1)},
	}
	parent, signer := template, crypto.Signer(key)
	if by == nil {
		template.IsCA, template.BasicConstraintsValid = true, true
		template.KeyUsage |= x509.KeyUsageCertSign
	} else {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %s: %w", id.file, err)
	}
	if err := writeKeyPair(dir, id.file, der, key); err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &authority{cert, key}, err
}

func writeKeyPair(dir, name string, der []byte, key *ecdsa.PrivateKey) error {
	plain, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode the key of %s: %w", name, err)
	}
	if err := writeFile(dir, name+".key", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: plain})); err != nil {
		return err
	}
	return writeFile(dir, name+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func writeFile(dir, name string, data []byte) error {
	return os.WriteFile(filepath.Join(dir, name), data, 0o600)
}
