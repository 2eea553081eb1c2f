package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/clusterd/clusterd/internal/atomicfile"
)

// Leaf describes a certificate that some component shows to others.
type Leaf struct {
	// Name is that of its files, without a directory. Required.
	Name string
	// CA is the name of the authority that signs it. Required.
	CA string
	// CommonName is the user, for a client. Required.
	CommonName string
	// Organizations are the groups, for a client. Their order has no meaning.
	Organizations []string
	// DNS and IPs are the names of a server. Their order has no meaning.
	DNS []string
	IPs []net.IP
	// Server and Client say what it is for. At least one is required.
	Server, Client bool
	// Chain puts the authority's certificate behind it into its file, for peers that know the authority only by its hash.
	Chain bool
}

// Ensure makes the leaf's files what l says, and tells whether it had to write
// any: because they are missing, unreadable, do not belong together or to the
// authority, say something else, are not valid yet, or have less than
// RenewBefore left.
func (p *PKI) Ensure(l Leaf) (changed bool, err error) {
	a, err := p.validate(l)
	if err != nil {
		return false, fmt.Errorf("certificate %s: %w", l.Name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	certPath, keyPath := p.Path(l.Name)
	key, err := readKey(keyPath)
	if err != nil || !usable(key) {
		return written(p.issue(l, a, nil, now))
	}
	certPEM, err := os.ReadFile(certPath)
	if err != nil || !l.matches(certPEM, key, a, now) {
		return written(p.issue(l, a, key, now))
	}
	return false, keepPrivate(keyPath)
}

func written(err error) (changed bool, _ error) { return err == nil, err }

func (p *PKI) validate(l Leaf) (*authority, error) {
	a, known := p.authorities[l.CA]
	_, taken := p.authorities[l.Name]
	switch {
	case l.Name == "" || l.Name != filepath.Base(l.Name):
		return nil, fmt.Errorf("%q is no file name", l.Name)
	case taken || l.Name == "service":
		return nil, errors.New("the name belongs to an authority or the service-account key")
	case !known:
		return nil, fmt.Errorf("no authority is called %q", l.CA)
	case l.CommonName == "":
		return nil, errors.New("no common name")
	case !l.Server && !l.Client:
		return nil, errors.New("neither for a server nor for a client")
	case slices.ContainsFunc(l.IPs, func(ip net.IP) bool { return ip.To16() == nil }):
		return nil, errors.New("one of its addresses is none")
	}
	return a, a.inTime(p.now())
}

// usable tells whether a leaf's key may be kept.
func usable(key crypto.Signer) bool {
	k, ok := key.(*ecdsa.PrivateKey)
	return ok && k.Curve == elliptic.P256()
}

// issue writes the leaf, with a new key if key is nil. Nothing waits for the
// disk: what a power cut destroys is made again at the next start.
func (p *PKI) issue(l Leaf, a *authority, key crypto.Signer, now time.Time) error {
	certPath, keyPath := p.Path(l.Name)
	if key == nil {
		fresh, err := newKey()
		if err != nil {
			return fmt.Errorf("make key of %s: %w", l.Name, err)
		}
		data, err := encodeKey(fresh)
		if err != nil {
			return fmt.Errorf("make key of %s: %w", l.Name, err)
		}
		if err := atomicfile.Write(keyPath, 0o600, data); err != nil {
			return err
		}
		key = fresh
	}
	der, err := sign(l.template(a, now), a.cert, key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("sign certificate %s: %w", l.Name, err)
	}
	return errors.Join(keepPrivate(keyPath), atomicfile.Write(certPath, 0o644, append(encodeCert(der), l.chain(a)...)))
}

// chain is what follows the certificate in its file.
func (l Leaf) chain(a *authority) []byte {
	if !l.Chain {
		return nil
	}
	return encodeCert(a.cert.Raw)
}

func (l Leaf) template(a *authority, now time.Time) *x509.Certificate {
	return &x509.Certificate{
		Subject:               pkix.Name{CommonName: l.CommonName, Organization: set(l.Organizations)},
		NotBefore:             now.Add(-Backdate),
		NotAfter:              earlier(now.Add(LeafLife), a.cert.NotAfter),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           l.usages(),
		DNSNames:              set(l.DNS),
		IPAddresses:           l.addresses(),
		BasicConstraintsValid: true,
	}
}

func (l Leaf) usages() (u []x509.ExtKeyUsage) {
	if l.Server {
		u = append(u, x509.ExtKeyUsageServerAuth)
	}
	if l.Client {
		u = append(u, x509.ExtKeyUsageClientAuth)
	}
	return u
}

func (l Leaf) addresses() (ips []net.IP) {
	for _, s := range ipSet(l.IPs) {
		ips = append(ips, net.ParseIP(s))
	}
	return ips
}

// matches tells whether a certificate is the one that template would make now,
// apart from its dates, and has enough time left.
func (l Leaf) matches(certPEM []byte, key crypto.Signer, a *authority, now time.Time) bool {
	cert, err := parseCert(certPEM)
	if err != nil {
		return false
	}
	return bytes.Equal(certPEM, append(encodeCert(cert.Raw), l.chain(a)...)) &&
		samePublicKey(cert.PublicKey, key.Public()) &&
		a.issued(cert) &&
		cert.Subject.CommonName == l.CommonName &&
		slices.Equal(set(cert.Subject.Organization), set(l.Organizations)) &&
		slices.Equal(set(cert.DNSNames), set(l.DNS)) &&
		slices.Equal(ipSet(cert.IPAddresses), ipSet(l.IPs)) &&
		slices.Equal(cert.ExtKeyUsage, l.usages()) &&
		lasts(cert, a, now)
}

// lasts tells whether a certificate needs no renewal. In the last months of its
// authority none can be longer than the one there is, so renewing is no use.
func lasts(cert *x509.Certificate, a *authority, now time.Time) bool {
	if now.Before(cert.NotBefore) || now.After(cert.NotAfter) {
		return false
	}
	return cert.NotAfter.Sub(now) >= RenewBefore || !cert.NotAfter.Before(a.cert.NotAfter)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// set returns s sorted and without repetitions.
func set(s []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(s)))
}

func ipSet(ips []net.IP) []string {
	s := make([]string, len(ips))
	for i, ip := range ips {
		s[i] = ip.String()
	}
	return set(s)
}
