package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
)

func newKey() (crypto.Signer, error) {
	return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
}

// encodeKey writes a P-256 key the way every Kubernetes parser reads it.
func encodeKey(key crypto.Signer) ([]byte, error) {
	k, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("encode key of type %T: not an elliptic-curve key", key)
	}
	der, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// readKey takes the three usual encodings, so that users can bring their own
// authorities. A file that does not exist gives an fs.ErrNotExist.
func readKey(path string) (crypto.Signer, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case "EC PRIVATE KEY":
			return signer(x509.ParseECPrivateKey(block.Bytes))
		case "RSA PRIVATE KEY":
			return signer(x509.ParsePKCS1PrivateKey(block.Bytes))
		case "PRIVATE KEY":
			key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			return signer(key, err)
		}
	}
	return nil, errors.New("no private key in PEM form")
}

// signer narrows what the parsers of the standard library return.
func signer(key any, err error) (crypto.Signer, error) {
	if err != nil {
		return nil, fmt.Errorf("parse key: %w", err)
	}
	s, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("parse key: a %T cannot sign", key)
	}
	return s, nil
}

// parseCert returns the first certificate of a PEM file.
func parseCert(data []byte) (*x509.Certificate, error) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parse certificate: %w", err)
		}
		return cert, nil
	}
	return nil, errors.New("no certificate in PEM form")
}

// samePublicKey compares keys of any kind the standard library knows.
func samePublicKey(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b)
}

// keepPrivate takes access by group and others away from a key that somebody
// else made.
func keepPrivate(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("inspect key: %w", err)
	}
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return fmt.Errorf("close key: %w", err)
	}
	return nil
}
