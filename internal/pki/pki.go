// Package pki keeps the certificates of one installation in one directory.
//
// It promises that [Open] leaves working certificate authorities and a
// service-account key, that [PKI.Ensure] leaves a leaf that is what was asked
// for and good for at least RenewBefore, and that private keys are readable by
// the owner only. Leaves are cheap: one that is missing, truncated or of no use
// is made again without a question. Authorities are not, since every client
// trusts them: a damaged one is an error that says what to do, never a new one.
//
// Renewal keeps a leaf's key, so that it is one rename and a reader never sees a
// certificate beside another one's key. To change a key, remove it. Whoever uses
// a leaf has to read its file again when it changes; Kubernetes does.
//
// The package uses only the standard library and packages of this module.
package pki

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// The names of the certificate authorities.
const (
	ServerCA        = "server-ca"         // signs serving certificates
	ClientCA        = "client-ca"         // signs client certificates, CSRs too
	RequestHeaderCA = "request-header-ca" // signs those who may speak for others
)

// How long certificates last. A leaf begins Backdate before it is made, for
// machines whose clocks are behind; authorities have no beginning that matters.
const (
	AuthorityLife = 10 * 365 * 24 * time.Hour
	LeafLife      = 365 * 24 * time.Hour
	RenewBefore   = 90 * 24 * time.Hour
	Backdate      = time.Hour
)

// Options are those of Open. The zero value is valid.
type Options struct {
	// Now is the clock. Nil means time.Now.
	Now func() time.Time
	// Log gets the renewals that do not work. Nil discards.
	Log *slog.Logger
}

// PKI is an open directory of certificates. Its methods may be called from
// several goroutines.
type PKI struct {
	Dir
	now func() time.Time
	log *slog.Logger

	mu          sync.Mutex // one writer of leaves at a time
	authorities map[string]*authority
}

// Open reads the authorities and the service-account key in dir, and makes those
// that are missing. It makes dir, mode 0700, if need be.
func Open(dir string, o Options) (*PKI, error) {
	p := &PKI{Dir: Dir(dir), now: o.Now, log: o.Log, authorities: map[string]*authority{}}
	if p.now == nil {
		p.now = time.Now
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make certificate directory: %w", err)
	}
	var errs []error
	for _, name := range []string{ServerCA, ClientCA, RequestHeaderCA} {
		a, err := p.openAuthority(name)
		if err != nil {
			errs = append(errs, err)
		}
		p.authorities[name] = a
	}
	errs = append(errs, p.openServiceKey())
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return p, nil
}

// Dir is where certificates and keys are, whether they exist yet or not.
type Dir string

// Path returns the files of the authority or leaf called name.
func (d Dir) Path(name string) (cert, key string) {
	base := filepath.Join(string(d), name)
	return base + ".crt", base + ".key"
}

// Read returns the PEM of the authority or leaf called name.
func (d Dir) Read(name string) (cert, key []byte, err error) {
	certPath, keyPath := d.Path(name)
	if cert, err = os.ReadFile(certPath); err != nil {
		return nil, nil, fmt.Errorf("read certificate: %w", err)
	}
	if key, err = os.ReadFile(keyPath); err != nil {
		return nil, nil, fmt.Errorf("read key: %w", err)
	}
	return cert, key, nil
}

// ServiceKey is the file with the private key that signs service-account
// tokens. Kubernetes takes it where it wants the public one, too.
func (d Dir) ServiceKey() string {
	_, key := d.Path("service")
	return key
}

// Lasting are the files that nothing can be made from again when they are lost: those of the authorities, and the
// service-account key. With them, every client and token of an installation stays valid.
func (d Dir) Lasting() []string {
	var all []string
	for _, name := range []string{ServerCA, ClientCA, RequestHeaderCA} {
		cert, key := d.Path(name)
		all = append(all, cert, key)
	}
	return append(all, d.ServiceKey())
}
