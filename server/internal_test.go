package server

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/clusterd/clusterd/internal/options"
	"github.com/clusterd/clusterd/internal/pki"
	"github.com/clusterd/clusterd/server/apiserver"
)

// TestOnlyTheAdministratorMayDoEverything looks at the groups of all client certificates.
func TestOnlyTheAdministratorMayDoEverything(t *testing.T) {
	for _, l := range (&certificates{}).clients() {
		if all := slices.Contains(l.Organizations, "system:masters"); all != (l.Name == clientAdmin) {
			t.Errorf("%s is %s in the groups %q", l.Name, l.CommonName, l.Organizations)
		}
	}
}

// TestKubeletCertificateOfOlderVersions starts on a data directory whose certificate for kubelets may do everything.
func TestKubeletCertificateOfOlderVersions(t *testing.T) {
	p, err := pki.Open(t.TempDir(), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	old := pki.Leaf{Name: clientKubelet, CA: pki.ClientCA, CommonName: "system:apiserver-kubelet-client", Organizations: []string{"system:masters"}, Client: true}
	if _, err := p.Ensure(old); err != nil {
		t.Fatal(err)
	}
	for _, l := range (&certificates{}).clients() {
		if _, err := p.Ensure(l); err != nil {
			t.Fatal(err)
		}
	}
	cert := certificate(t, p.Dir, clientKubelet)
	if cert.Subject.String() != "CN="+apiserver.KubeletUser {
		t.Errorf("the certificate is of %s", cert.Subject)
	}
}

// TestClockIsSetWhileRunning has certificates that were made in 1970, as on a board without a clock of its own, and tells
// that the clock has been set.
func TestClockIsSetWhileRunning(t *testing.T) {
	dir := t.TempDir()
	clock := make(chan struct{})
	c := newCertificates(
		Config{Node: options.Node{NodeName: "n"}, ClusterDomain: "cluster.local", WriteKubeconfig: filepath.Join(dir, "kubeconfig"), WriteKubeconfigMode: 0o600},
		Deps{PKI: pki.Dir(filepath.Join(dir, "tls")), NodeIPs: func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("192.168.7.5")} }, Log: slog.New(slog.DiscardHandler)})
	c.clockChanges = func(context.Context) (<-chan struct{}, error) { return clock, nil }
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- c.Run(ctx, func() { close(ready) }) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}

	then := func() time.Time { return time.Unix(60, 0) }
	past, err := pki.Open(string(c.d.PKI), pki.Options{Now: then})
	if err != nil {
		t.Fatal(err)
	}
	leaves, err := c.leaves()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range leaves {
		if changed, err := past.Ensure(l); err != nil || !changed {
			t.Fatal(changed, err)
		}
	}
	select {
	case clock <- struct{}{}:
	case <-time.After(10 * time.Second):
		t.Fatal("nobody is told of the clock")
	}
	for _, l := range leaves {
		for deadline := time.Now().Add(10 * time.Second); certificate(t, c.d.PKI, l.Name).NotAfter.Before(time.Now()); {
			if time.Now().After(deadline) {
				t.Fatalf("%s is still that of 1970", l.Name)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

func certificate(t *testing.T, dir pki.Dir, name string) *x509.Certificate {
	t.Helper()
	text, _, err := dir.Read(name)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}
