package pki_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clusterd/clusterd/internal/pki"
)

var authorities = []string{pki.ServerCA, pki.ClientCA, pki.RequestHeaderCA}

// clock is a time that tests set.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock {
	return &clock{now: time.Date(2030, time.May, 1, 12, 0, 0, 0, time.UTC)}
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func open(t *testing.T, dir string, c *clock) *pki.PKI {
	t.Helper()
	p, err := pki.Open(dir, pki.Options{Now: c.Now})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// parsed returns the certificate called name.
func parsed(t *testing.T, p *pki.PKI, name string) *x509.Certificate {
	t.Helper()
	path, _ := p.Path(name)
	block, _ := pem.Decode(read(t, path))
	if block == nil {
		t.Fatalf("%s holds no PEM", path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// snapshot is the content of every file in dir.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		files[e.Name()] = string(read(t, filepath.Join(dir, e.Name())))
	}
	return files
}

func expectMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != want {
		t.Errorf("%s has mode %s, want %s", path, info.Mode(), want)
	}
}

func TestOpenMakesAuthorities(t *testing.T) {
	t.Parallel()
	c, dir := newClock(), filepath.Join(t.TempDir(), "tls")
	p := open(t, dir, c)
	expectMode(t, dir, 0o700)
	expectMode(t, p.ServiceKey(), 0o600)
	subjects := map[string]bool{}
	for _, name := range authorities {
		_, key := p.Path(name)
		expectMode(t, key, 0o600)
		cert := parsed(t, p, name)
		if !cert.IsCA || cert.CheckSignatureFrom(cert) != nil {
			t.Errorf("%s is no self-signed authority", name)
		}
		if want := time.Unix(0, 0); !cert.NotBefore.Equal(want) {
			t.Errorf("%s begins at %s, want %s", name, cert.NotBefore, want)
		}
		if want := c.Now().Add(pki.AuthorityLife); !cert.NotAfter.Equal(want) {
			t.Errorf("%s ends at %s, want %s", name, cert.NotAfter, want)
		}
		subjects[cert.Subject.String()] = true
	}
	if len(subjects) != len(authorities) {
		t.Errorf("authorities share subjects: %v", subjects)
	}
}

func TestOpenAgainChangesNothing(t *testing.T) {
	t.Parallel()
	c, dir := newClock(), t.TempDir()
	open(t, dir, c)
	before := snapshot(t, dir)
	c.Add(5 * 365 * 24 * time.Hour)
	open(t, dir, c)
	for name, content := range snapshot(t, dir) {
		if before[name] != content {
			t.Errorf("%s has changed", name)
		}
	}
}

func TestTwoInstallationsDiffer(t *testing.T) {
	t.Parallel()
	c := newClock()
	a, b := open(t, t.TempDir(), c), open(t, t.TempDir(), c)
	if bytes.Equal(parsed(t, a, pki.ServerCA).RawSubject, parsed(t, b, pki.ServerCA).RawSubject) {
		t.Error("two authorities with different keys have the same subject")
	}
}

// TestDamagedAuthority breaks an authority in several ways: each has to be an
// error that names the file, and leave every byte as it is.
func TestDamagedAuthority(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, file string
		damage     func(t *testing.T, p *pki.PKI, path string)
		want       string
	}{
		{"truncated certificate", "server-ca.crt", truncate, "damaged"},
		{"empty certificate", "client-ca.crt", empty, "damaged"},
		{"truncated key", "client-ca.key", truncate, "damaged"},
		{"empty key", "server-ca.key", empty, "damaged"},
		{"missing key", "server-ca.key", remove, "damaged"},
		{"key of another", "request-header-ca.key", func(t *testing.T, p *pki.PKI, path string) {
			_, other := p.Path(pki.ServerCA)
			write(t, path, read(t, other))
		}, "belongs to another"},
		{"leaf in its place", "server-ca.crt", func(t *testing.T, p *pki.PKI, path string) {
			ensure(t, p, serving(), true)
			cert, key := p.Path(serving().Name)
			write(t, path, read(t, cert))
			_, caKey := p.Path(pki.ServerCA)
			write(t, caKey, read(t, key))
		}, "not a certificate authority"},
		{"truncated service key", "service.key", truncate, "damaged"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			c, dir := newClock(), t.TempDir()
			path := filepath.Join(dir, row.file)
			row.damage(t, open(t, dir, c), path)
			before := snapshot(t, dir)
			_, err := pki.Open(dir, pki.Options{Now: c.Now})
			if err == nil || !strings.Contains(err.Error(), row.want) || !strings.Contains(err.Error(), strings.TrimSuffix(path, filepath.Ext(path))) {
				t.Errorf("got %v, want %q and the file", err, row.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %v", err)
			}
			after := snapshot(t, dir)
			for name := range after {
				if before[name] != after[name] {
					t.Errorf("%s has changed", name)
				}
			}
			if len(before) != len(after) {
				t.Errorf("%d files before, %d after", len(before), len(after))
			}
		})
	}
}

func truncate(t *testing.T, _ *pki.PKI, path string) {
	data := read(t, path)
	write(t, path, data[:len(data)/2])
}

func empty(t *testing.T, _ *pki.PKI, path string) { write(t, path, nil) }

func remove(t *testing.T, _ *pki.PKI, path string) {
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// TestKillBetweenKeyAndCertificate is the one half-made state there can be: the
// certificate is made again, and leaves signed before stay good.
func TestKillBetweenKeyAndCertificate(t *testing.T) {
	t.Parallel()
	c, dir := newClock(), t.TempDir()
	p := open(t, dir, c)
	ensure(t, p, serving(), true)
	old := parsed(t, p, pki.ServerCA)
	cert, _ := p.Path(pki.ServerCA)
	remove(t, p, cert)
	p = open(t, dir, c)
	ensure(t, p, serving(), false)
	for _, ca := range []*x509.Certificate{old, parsed(t, p, pki.ServerCA)} {
		verify(t, ca, parsed(t, p, serving().Name), c.Now())
	}
}

func TestAuthorityOutOfTime(t *testing.T) {
	t.Parallel()
	for want, shift := range map[string]time.Duration{
		"ended at":      pki.AuthorityLife + time.Hour,
		"set the clock": -70 * 365 * 24 * time.Hour,
	} {
		c, dir := newClock(), t.TempDir()
		p := open(t, dir, c)
		c.Add(shift)
		if _, err := pki.Open(dir, pki.Options{Now: c.Now}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("open: got %v, want %q", err, want)
		}
		if _, err := p.Ensure(serving()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ensure: got %v, want %q", err, want)
		}
	}
}

// TestClockWithoutBattery makes everything in 1970 and goes on when the clock is
// right.
func TestClockWithoutBattery(t *testing.T) {
	t.Parallel()
	c, dir := newClock(), t.TempDir()
	right := c.Now()
	c.now = time.Date(1970, time.January, 1, 0, 1, 0, 0, time.UTC)
	ensure(t, open(t, dir, c), serving(), true)
	c.now = right
	p := open(t, dir, c)
	ensure(t, p, serving(), true)
	verify(t, parsed(t, p, pki.ServerCA), parsed(t, p, serving().Name), right)
}

// TestClockOfAuthorityWasAhead makes everything in the future and goes on when the clock is right.
func TestClockOfAuthorityWasAhead(t *testing.T) {
	t.Parallel()
	c, dir := newClock(), t.TempDir()
	right := c.Now()
	c.Add(20 * 365 * 24 * time.Hour)
	ensure(t, open(t, dir, c), serving(), true)
	c.now = right
	p := open(t, dir, c)
	ensure(t, p, serving(), true)
	verify(t, parsed(t, p, pki.ServerCA), parsed(t, p, serving().Name), right)
}

// TestBootWithoutClock makes everything while the clock is right, and boots with one that starts in 1970 before it is right
// again.
func TestBootWithoutClock(t *testing.T) {
	t.Parallel()
	c, dir := newClock(), t.TempDir()
	right := c.Now()
	ensure(t, open(t, dir, c), serving(), true)
	for _, now := range []time.Time{time.Unix(1, 0), right} {
		c.now = now
		p := open(t, dir, c)
		ensure(t, p, serving(), true)
		verify(t, parsed(t, p, pki.ServerCA), parsed(t, p, serving().Name), now)
	}
}

func TestOpenClosesKeys(t *testing.T) {
	t.Parallel()
	c, dir := newClock(), t.TempDir()
	p := open(t, dir, c)
	_, caKey := p.Path(pki.ServerCA)
	for _, key := range []string{caKey, p.ServiceKey()} {
		if err := os.Chmod(key, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	open(t, dir, c)
	expectMode(t, caKey, 0o600)
	expectMode(t, p.ServiceKey(), 0o600)
}

func TestRead(t *testing.T) {
	t.Parallel()
	p := open(t, t.TempDir(), newClock())
	ensure(t, p, serving(), true)
	cert, key, err := p.Read(serving().Name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tls.X509KeyPair(cert, key); err != nil {
		t.Error(err)
	}
	if _, _, err := p.Read("nobody"); err == nil {
		t.Error("no error for a leaf that does not exist")
	}
}

func serving() pki.Leaf {
	return pki.Leaf{
		Name: "serving", CA: pki.ServerCA, CommonName: "clusterd",
		DNS: []string{"localhost", "kubernetes"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP("::1")},
		Server: true,
	}
}

// What Open makes is what cannot be made again.
func TestLasting(t *testing.T) {
	p := open(t, t.TempDir(), newClock())
	found, err := filepath.Glob(filepath.Join(string(p.Dir), "*"))
	if err != nil {
		t.Fatal(err)
	}
	lasting := p.Lasting()
	slices.Sort(lasting)
	if !slices.Equal(found, lasting) {
		t.Errorf("there is %q, and what lasts is %q", found, lasting)
	}
}
