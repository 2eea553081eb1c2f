package join

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clusterd/clusterd/internal/join"
	"github.com/clusterd/clusterd/internal/pki"
)

// newServer serves with a certificate as a clusterd server has it, and gives the hash of its authority.
func newServer(t *testing.T, h http.HandlerFunc, names ...string) (url, hash string) {
	t.Helper()
	p, err := pki.Open(t.TempDir(), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	leaf := pki.Leaf{Name: "serving", CA: pki.ServerCA, CommonName: "s", DNS: names, Server: true, Chain: true}
	if _, err := p.Ensure(leaf); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(p.Path(leaf.Name))
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL, hashOf(t, p)
}

func hashOf(t *testing.T, p *pki.PKI) string {
	t.Helper()
	path, _ := p.Path(pki.ServerCA)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(data)
	ca, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return join.HashOf(ca)
}

var description = join.Info{
	Servers: []string{"192.0.2.1:6443"}, ServerCA: "a", ClientCA: "b",
	ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16")},
	ClusterDNS: []netip.Addr{netip.MustParseAddr("10.43.0.10")}, ClusterDomain: "cluster.local", DNS: true,
}

func TestServerIsVerifiedBeforeItSeesTheToken(t *testing.T) {
	var seen atomic.Value
	handler := func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r.Header.Get("Authorization"))
		_ = json.NewEncoder(w).Encode(description)
	}
	token := join.Token{ID: "abcdef", Secret: "0123456789abcdef"}
	url, hash := newServer(t, handler, join.ServerName)
	token.CAHash = hash
	info, err := ask(t.Context(), url, token)
	if err != nil || info.Servers[0] != description.Servers[0] || seen.Load() != "Bearer "+token.Bearer() {
		t.Fatalf("got %+v, error %v", info, err)
	}
	seen.Store("")

	token.CAHash = strings.Repeat("0", 64)
	_, err = ask(t.Context(), url, token)
	var f final
	if !errors.As(err, &f) || !strings.Contains(err.Error(), "is not the one that the token is for") {
		t.Errorf("another authority: %v", err)
	}
	kubelet, hash := newServer(t, handler, "n1") // its certificate is the authority's too, but a node's
	token.CAHash = hash
	if _, err = ask(t.Context(), kubelet, token); err == nil {
		t.Error("a node's certificate was taken for a server's")
	}
	if seen.Load() != "" {
		t.Error("the token was shown to somebody else")
	}
}

func TestOnlyWhatHelpsIsTriedAgain(t *testing.T) {
	refusal, _ := json.Marshal(join.Refusal{Reason: "with the ID abcdef has expired"})
	good, _ := json.Marshal(description)
	for name, c := range map[string]struct {
		status int
		body   []byte
		word   string
		final  bool
	}{
		"good":          {http.StatusOK, good, "", false},
		"refused":       {http.StatusUnauthorized, refusal, "the token with the ID abcdef has expired", true},
		"older":         {http.StatusUnauthorized, []byte(`{"kind":"Status"}`), "lets no nodes join", true},
		"starting":      {http.StatusServiceUnavailable, []byte("starting"), "503 starting", false},
		"not the whole": {http.StatusOK, []byte(`{}`), "not complete", true},
	} {
		_, err := understand("https://s", c.status, c.body)
		var f final
		if (err == nil) != (c.word == "") || errors.As(err, &f) != c.final || err != nil && !strings.Contains(err.Error(), c.word) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEachReasonIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	tries := 0
	err := insist(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), "joining", func(context.Context) error {
		if tries++; tries < 3 {
			return errors.New("no route to host")
		}
		return nil
	})
	if err != nil || strings.Count(log.String(), "no route to host") != 1 {
		t.Errorf("error %v; log:\n%s", err, log.String())
	}
}

// echo answers each connection with a word.
func echo(t *testing.T, word string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(word))
			_ = c.Close()
		}
	}()
	return l
}

func TestBalancerMovesOn(t *testing.T) {
	first, second, fallback := echo(t, "first"), echo(t, "second"), echo(t, "fallback")
	probe, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(probe.Addr().String())
	_ = probe.Close()
	b := NewBalancer(at, []string{first.Addr().String(), second.Addr().String()}, fallback.Addr().String(), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- b.Run(ctx, func() { close(ready) }) }()
	<-ready
	reach := func(want string) {
		t.Helper()
		c, err := net.Dial("tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		var got bytes.Buffer
		_, _ = got.ReadFrom(c)
		if got.String() != want {
			t.Errorf("reached %q, want %q", got.String(), want)
		}
	}
	reach("first")
	_ = first.Close()
	reach("second")
	_ = second.Close()
	reach("fallback")
	reach("fallback") // and at once: the others are not waited for again
	third := echo(t, "third")
	b.SetServers([]string{third.Addr().String()})
	reach("third")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
