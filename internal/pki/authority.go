package pki

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/clusterd/clusterd/internal/atomicfile"
)

// plausible is before every moment at which this program can really run. An
// authority made while the clock says less (a board without a battery, before it
// has met a time server) still gets its years counted from here, or it would be
// over as soon as the clock is right.
var plausible = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// dawn is when authorities begin: where a clock without a battery starts. So an
// authority is valid whatever the clock says later, also one made while it was
// ahead, and a board that boots in 1970 can work until it knows the time: leaves
// are made for then, and once more when the clock is right.
var dawn = time.Unix(0, 0)

// authority is a CA with its key.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// damaged is the error for an authority that cannot be used and must not be
// replaced behind the user's back.
func damaged(path string, err error) error {
	return fmt.Errorf("certificate authority file %s is damaged: %w: restore it from a backup (a new authority would lock out every client)", path, err)
}

// openAuthority reads the authority called name, or makes it when it has neither
// key nor certificate. The key is written first: after a kill between the two,
// there is a key without a certificate, and the certificate can be made again
// from the key without a change for anybody who trusts it.
func (p *PKI) openAuthority(name string) (*authority, error) {
	certPath, keyPath := p.Path(name)
	certPEM, certErr := os.ReadFile(certPath)
	key, keyErr := readKey(keyPath)
	noCert, noKey := errors.Is(certErr, fs.ErrNotExist), errors.Is(keyErr, fs.ErrNotExist)
	switch {
	case noCert && noKey:
		return p.newAuthority(name)
	case keyErr != nil:
		return nil, damaged(keyPath, keyErr)
	case noCert:
		return p.certifyAuthority(name, key)
	case certErr != nil:
		return nil, fmt.Errorf("read certificate authority: %w", certErr)
	}
	cert, err := parseCert(certPEM)
	if err != nil {
		return nil, damaged(certPath, err)
	}
	a := &authority{cert: cert, key: key}
	if err := a.check(); err != nil {
		return nil, damaged(certPath, err)
	}
	if err := a.inTime(p.now()); err != nil {
		return nil, fmt.Errorf("certificate authority %s: %w", certPath, err)
	}
	return a, keepPrivate(keyPath)
}

func (p *PKI) newAuthority(name string) (*authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, fmt.Errorf("make key of %s: %w", name, err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, fmt.Errorf("make key of %s: %w", name, err)
	}
	_, keyPath := p.Path(name)
	if err := atomicfile.WriteDurable(keyPath, 0o600, keyPEM); err != nil {
		return nil, err
	}
	return p.certifyAuthority(name, key)
}

// certifyAuthority makes and writes the self-signed certificate of key. Subject
// and key identifier follow from name and key alone, so that doing it twice
// gives two certificates that can stand in for each other.
func (p *PKI) certifyAuthority(name string, key crypto.Signer) (*authority, error) {
	id, err := keyID(key)
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", name, err)
	}
	now := p.now()
	from := now
	if from.Before(plausible) {
		from = plausible
	}
	der, err := sign(&x509.Certificate{
		Subject:               pkix.Name{CommonName: "clusterd-" + name + "@" + hex.EncodeToString(id[:4])},
		SubjectKeyId:          id,
		NotBefore:             earlier(dawn, now.Add(-Backdate)),
		NotAfter:              from.Add(AuthorityLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}, nil, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", name, err)
	}
	certPath, _ := p.Path(name)
	if err := atomicfile.WriteDurable(certPath, 0o644, encodeCert(der)); err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: key}, nil
}

// keyID is the RFC 7093 identifier of a key.
func keyID(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(der)
	return sum[:20], nil
}

// check says what is wrong with an authority whose files could be read.
func (a *authority) check() error {
	switch {
	case !samePublicKey(a.cert.PublicKey, a.key.Public()):
		return errors.New("the key beside it belongs to another certificate")
	case !a.cert.IsCA:
		return errors.New("it is not a certificate authority")
	}
	return nil
}

func (a *authority) inTime(now time.Time) error {
	switch {
	case now.After(a.cert.NotAfter):
		return fmt.Errorf("ended at %s: replace it, and give the new one to every client", a.cert.NotAfter.Format(time.RFC3339))
	case now.Before(a.cert.NotBefore):
		return fmt.Errorf("begins at %s but the clock says %s: set the clock", a.cert.NotBefore.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return nil
}

// issued tells whether a signed cert.
func (a *authority) issued(cert *x509.Certificate) bool {
	return bytes.Equal(cert.RawIssuer, a.cert.RawSubject) && cert.CheckSignatureFrom(a.cert) == nil
}

// sign makes a certificate; parent nil means self-signed.
func sign(template, parent *x509.Certificate, public crypto.PublicKey, signer crypto.Signer) ([]byte, error) {
	if parent == nil {
		parent = template
	}
	return x509.CreateCertificate(rand.Reader, template, parent, public, signer)
}

// openServiceKey makes the key of service-account tokens when it is missing.
//
// Why P-256 and not RSA: a token a pod is signed here, and this key takes a
// fraction of the time, both to make and to sign with.
func (p *PKI) openServiceKey() error {
	path := p.ServiceKey()
	_, err := readKey(path)
	switch {
	case err == nil:
		return keepPrivate(path)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("service-account key %s is damaged: %w: restore it from a backup, or remove it, which ends all service-account tokens", path, err)
	}
	key, err := newKey()
	if err != nil {
		return fmt.Errorf("make service-account key: %w", err)
	}
	data, err := encodeKey(key)
	if err != nil {
		return fmt.Errorf("make service-account key: %w", err)
	}
	return atomicfile.WriteDurable(path, 0o600, data)
}
