package pki_test

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clusterd/clusterd/internal/pki"
)

func admin() pki.Leaf {
	return pki.Leaf{
		Name: "admin", CA: pki.ClientCA, CommonName: "system:admin",
		Organizations: []string{"system:masters", "a"}, Client: true,
	}
}

// ensure checks what Ensure says about l, and that the files are a pair after.
func ensure(t *testing.T, p *pki.PKI, l pki.Leaf, changed bool) {
	t.Helper()
	got, err := p.Ensure(l)
	if err != nil {
		t.Fatal(err)
	}
	if got != changed {
		t.Errorf("changed %t, want %t", got, changed)
	}
	cert, key := p.Path(l.Name)
	if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
		t.Error(err)
	}
	expectMode(t, key, 0o600)
}

func verify(t *testing.T, ca, leaf *x509.Certificate, now time.Time) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	o := x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	if _, err := leaf.Verify(o); err != nil {
		t.Error(err)
	}
}

func TestLeafSaysWhatWasAsked(t *testing.T) {
	t.Parallel()
	c := newClock()
	p := open(t, t.TempDir(), c)
	for _, l := range []pki.Leaf{serving(), admin()} {
		ensure(t, p, l, true)
		cert := parsed(t, p, l.Name)
		verify(t, parsed(t, p, l.CA), cert, c.Now())
		if cert.Subject.CommonName != l.CommonName || len(cert.Subject.Organization) != len(l.Organizations) {
			t.Errorf("subject %s", cert.Subject)
		}
		if len(cert.DNSNames) != len(l.DNS) || len(cert.IPAddresses) != len(l.IPs) {
			t.Errorf("names %v %v", cert.DNSNames, cert.IPAddresses)
		}
		if slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageServerAuth) != l.Server || slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageClientAuth) != l.Client {
			t.Errorf("usages %v", cert.ExtKeyUsage)
		}
		if !cert.NotBefore.Equal(c.Now().Add(-time.Hour)) || !cert.NotAfter.Equal(c.Now().Add(pki.LeafLife)) {
			t.Errorf("valid from %s to %s", cert.NotBefore, cert.NotAfter)
		}
		ensure(t, p, l, false)
	}
}

func TestOrderAndRepetitionsMeanNothing(t *testing.T) {
	t.Parallel()
	p := open(t, t.TempDir(), newClock())
	l := serving()
	l.Organizations = []string{"b", "a"}
	ensure(t, p, l, true)
	l.Organizations = []string{"a", "b", "a"}
	l.DNS = []string{"kubernetes", "localhost", "kubernetes"}
	l.IPs = []net.IP{net.ParseIP("::1"), net.ParseIP("127.0.0.1").To4()}
	ensure(t, p, l, false)
}

// TestLeafIsMadeAgain has a good leaf, changes one thing, and wants a new
// certificate that is good for a year and whose key is the old one if that can be.
func TestLeafIsMadeAgain(t *testing.T) {
	t.Parallel()
	other := serving()
	other.Name = "other"
	for _, row := range []struct {
		name    string
		change  func(t *testing.T, p *pki.PKI, c *clock, l *pki.Leaf)
		keepKey bool
	}{
		{"missing certificate", func(t *testing.T, p *pki.PKI, _ *clock, l *pki.Leaf) { remove(t, p, certOf(p, l)) }, true},
		{"missing key", func(t *testing.T, p *pki.PKI, _ *clock, l *pki.Leaf) { remove(t, p, keyOf(p, l)) }, false},
		{"truncated certificate", func(t *testing.T, p *pki.PKI, _ *clock, l *pki.Leaf) { truncate(t, p, certOf(p, l)) }, true},
		{"truncated key", func(t *testing.T, p *pki.PKI, _ *clock, l *pki.Leaf) { truncate(t, p, keyOf(p, l)) }, false},
		{"empty certificate", func(t *testing.T, p *pki.PKI, _ *clock, l *pki.Leaf) { empty(t, p, certOf(p, l)) }, true},
		{"empty key", func(t *testing.T, p *pki.PKI, _ *clock, l *pki.Leaf) { empty(t, p, keyOf(p, l)) }, false},
		{"key of another", func(t *testing.T, p *pki.PKI, _ *clock, l *pki.Leaf) {
			ensure(t, p, other, true)
			write(t, keyOf(p, l), read(t, keyOf(p, &other)))
		}, false},
		{"certificate of another authority", func(t *testing.T, p *pki.PKI, c *clock, l *pki.Leaf) {
			stranger := open(t, t.TempDir(), c)
			write(t, keyOf(stranger, l), read(t, keyOf(p, l)))
			ensure(t, stranger, *l, true)
			write(t, certOf(p, l), read(t, certOf(stranger, l)))
		}, true},
		{"other authority", func(_ *testing.T, _ *pki.PKI, _ *clock, l *pki.Leaf) { l.CA = pki.ClientCA }, true},
		{"other common name", func(_ *testing.T, _ *pki.PKI, _ *clock, l *pki.Leaf) { l.CommonName = "x" }, true},
		{"more groups", func(_ *testing.T, _ *pki.PKI, _ *clock, l *pki.Leaf) { l.Organizations = []string{"x"} }, true},
		{"more names", func(_ *testing.T, _ *pki.PKI, _ *clock, l *pki.Leaf) { l.DNS = append(l.DNS, "x") }, true},
		{"fewer addresses", func(_ *testing.T, _ *pki.PKI, _ *clock, l *pki.Leaf) { l.IPs = l.IPs[:1] }, true},
		{"other use", func(_ *testing.T, _ *pki.PKI, _ *clock, l *pki.Leaf) { l.Client = true }, true},
		{"less than 90 days left", func(_ *testing.T, _ *pki.PKI, c *clock, _ *pki.Leaf) {
			c.Add(pki.LeafLife - pki.RenewBefore + time.Second)
		}, true},
		{"over", func(_ *testing.T, _ *pki.PKI, c *clock, _ *pki.Leaf) { c.Add(pki.LeafLife + time.Hour) }, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			c := newClock()
			p, l := open(t, t.TempDir(), c), serving()
			ensure(t, p, l, true)
			key, cert := read(t, keyOf(p, &l)), parsed(t, p, l.Name)
			row.change(t, p, c, &l)
			ensure(t, p, l, true)
			if kept := bytes.Equal(key, read(t, keyOf(p, &l))); kept != row.keepKey {
				t.Errorf("key kept: %t, want %t", kept, row.keepKey)
			}
			fresh := parsed(t, p, l.Name)
			verify(t, parsed(t, p, l.CA), fresh, c.Now())
			if fresh.SerialNumber.Cmp(cert.SerialNumber) == 0 || !fresh.NotAfter.Equal(c.Now().Add(pki.LeafLife)) {
				t.Errorf("serial %s, until %s", fresh.SerialNumber, fresh.NotAfter)
			}
			ensure(t, p, l, false)
		})
	}
}

func certOf(p *pki.PKI, l *pki.Leaf) string {
	cert, _ := p.Path(l.Name)
	return cert
}

func keyOf(p *pki.PKI, l *pki.Leaf) string {
	_, key := p.Path(l.Name)
	return key
}

func TestLeafIsKeptWith90DaysLeft(t *testing.T) {
	t.Parallel()
	c := newClock()
	p := open(t, t.TempDir(), c)
	ensure(t, p, serving(), true)
	c.Add(pki.LeafLife - pki.RenewBefore)
	ensure(t, p, serving(), false)
}

// TestClockWasAhead makes a leaf in the future of an authority that is older.
func TestClockWasAhead(t *testing.T) {
	t.Parallel()
	c := newClock()
	p := open(t, t.TempDir(), c)
	c.Add(30 * 24 * time.Hour)
	ensure(t, p, serving(), true)
	c.Add(-30 * 24 * time.Hour)
	ensure(t, p, serving(), true)
	verify(t, parsed(t, p, pki.ServerCA), parsed(t, p, serving().Name), c.Now())
}

// TestLastMonthsOfTheAuthority wants a leaf that ends with it, made once.
func TestLastMonthsOfTheAuthority(t *testing.T) {
	t.Parallel()
	c := newClock()
	p := open(t, t.TempDir(), c)
	c.Add(pki.AuthorityLife - 30*24*time.Hour)
	ensure(t, p, serving(), true)
	ensure(t, p, serving(), false)
	if leaf, ca := parsed(t, p, serving().Name), parsed(t, p, pki.ServerCA); !leaf.NotAfter.Equal(ca.NotAfter) {
		t.Errorf("leaf ends at %s, authority at %s", leaf.NotAfter, ca.NotAfter)
	}
}

func TestEnsureClosesAnOpenKey(t *testing.T) {
	t.Parallel()
	p, l := open(t, t.TempDir(), newClock()), serving()
	ensure(t, p, l, true)
	if err := os.Chmod(keyOf(p, &l), 0o644); err != nil {
		t.Fatal(err)
	}
	ensure(t, p, l, false) // looks at the mode
}

func TestWrongLeaf(t *testing.T) {
	t.Parallel()
	p := open(t, t.TempDir(), newClock())
	for want, change := range map[string]func(l *pki.Leaf){
		`"" is no file name`:           func(l *pki.Leaf) { l.Name = "" },
		`"a/b" is no file name`:        func(l *pki.Leaf) { l.Name = "a/b" },
		"belongs to an authority":      func(l *pki.Leaf) { l.Name = pki.ServerCA },
		"or the service-account key":   func(l *pki.Leaf) { l.Name = "service" },
		`no authority is called "x"`:   func(l *pki.Leaf) { l.CA = "x" },
		"no common name":               func(l *pki.Leaf) { l.CommonName = "" },
		"neither for a server nor for": func(l *pki.Leaf) { l.Server = false },
		"one of its addresses is none": func(l *pki.Leaf) { l.IPs = append(l.IPs, nil) },
		"sign certificate serving":     func(l *pki.Leaf) { l.DNS = []string{"\x80"} },
	} {
		l := serving()
		change(&l)
		if changed, err := p.Ensure(l); changed || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %t, %v, want %q", changed, err, want)
		}
	}
}

// TestRenamedAuthority keeps the key of the authority and changes its subject: a
// chain is built by names, so leaves have to follow.
func TestRenamedAuthority(t *testing.T) {
	t.Parallel()
	c, dir := newClock(), t.TempDir()
	p := open(t, dir, c)
	ensure(t, p, serving(), true)
	certPEM, keyPEM, err := p.Read(pki.ServerCA)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	renamed := parsed(t, p, pki.ServerCA)
	renamed.RawSubject, renamed.Subject.CommonName = nil, "renamed"
	der, err := x509.CreateCertificate(rand.Reader, renamed, renamed, pair.Leaf.PublicKey, pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	path, _ := p.Path(pki.ServerCA)
	write(t, path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	p = open(t, dir, c)
	ensure(t, p, serving(), true)
	verify(t, parsed(t, p, pki.ServerCA), parsed(t, p, serving().Name), c.Now())
}

// TestEnsureAtTheSameTime wants one of many callers to have made the leaf.
func TestEnsureAtTheSameTime(t *testing.T) {
	t.Parallel()
	p := open(t, t.TempDir(), newClock())
	var made atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			changed, err := p.Ensure(serving())
			if err != nil {
				t.Error(err)
			}
			if changed {
				made.Add(1)
			}
		})
	}
	wg.Wait()
	if made.Load() != 1 {
		t.Errorf("made %d times", made.Load())
	}
	ensure(t, p, serving(), false)
}
