package server

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"testing"

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
	text, _, err := p.Read(clientKubelet)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if cert.Subject.String() != "CN="+apiserver.KubeletUser {
		t.Errorf("the certificate is of %s", cert.Subject)
	}
}
