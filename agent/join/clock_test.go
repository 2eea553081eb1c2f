package join

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/util/keyutil"

	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/join"
)

var made = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// member is a machine with certificates of the year 2026, at a time.
func member(t *testing.T, now time.Time) *Member {
	t.Helper()
	dir, err := datadir.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir.AgentTLS(), 0o700); err != nil {
		t.Fatal(err)
	}
	m := newMember(Config{NodeName: "one", Dir: dir}, slog.New(slog.DiscardHandler))
	m.now = func() time.Time { return now }
	m.record.Info = join.Info{Servers: []string{"192.0.2.1:6443"}}
	for _, c := range m.fixed() {
		sign(t, c)
	}
	return m
}

func sign(t *testing.T, c certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: c.user}, NotBefore: made, NotAfter: made.AddDate(1, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, data := range map[string][]byte{c.key: keyPEM, c.cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestClock(t *testing.T) {
	for name, row := range map[string]struct {
		now             time.Time
		joined, replace bool
	}{
		"never set": {time.Unix(0, 0), true, true},
		"right":     {made.AddDate(0, 1, 0), true, false},
		"due":       {made.AddDate(0, 9, 0), true, true},
		"ahead":     {made.AddDate(10, 0, 0), false, true},
	} {
		m := member(t, row.now)
		if got := m.joined(); got != row.joined {
			t.Errorf("%s: the machine is a node: %v", name, got)
		}
		for _, c := range m.fixed() {
			if got := !m.now().Before(c.lasts(m.now())); got != row.replace {
				t.Errorf("%s: %s is to be replaced: %v", name, c.user, got)
			}
		}
	}
}

// A machine whose clock is ahead when it boots, and which has no token, goes on as soon as the clock is right.
func TestClockAheadIsWaitedFor(t *testing.T) {
	m := member(t, made.AddDate(10, 0, 0))
	var right atomic.Bool
	m.now = func() time.Time {
		if right.Load() {
			return made.AddDate(0, 1, 0)
		}
		return made.AddDate(10, 0, 0)
	}
	set := make(chan struct{})
	m.clockChanges = func(context.Context) (<-chan struct{}, error) { return set, nil }
	done := make(chan error, 1)
	go func() { done <- m.awaitClock(t.Context()) }()
	for range 2 { // to other wrong times: who takes the second has looked at the first
		select {
		case err := <-done:
			t.Fatalf("it does not wait: %v", err)
		case set <- struct{}{}:
		}
	}
	right.Store(true)
	select { // it may have seen that with the last one already
	case set <- struct{}{}:
		if err := <-done; err != nil {
			t.Error(err)
		}
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := member(t, made.AddDate(10, 0, 0)).awaitClock(ctx); err == nil {
		t.Error("it does not end with its context")
	}
}
