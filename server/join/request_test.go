package join

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/clusterd/clusterd/internal/join"
)

// machine is one with a key of its own.
type machine struct{ key *ecdsa.PrivateKey }

func newMachine(t *testing.T) machine {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return machine{key}
}

// ask is a request for a certificate, by a holder of the token abcdef unless edit makes it another's.
func (m machine) ask(t *testing.T, signer string, usage certificates.KeyUsage, cn string, groups []string, edit func(*x509.CertificateRequest, *certificates.CertificateSigningRequest)) *certificates.CertificateSigningRequest {
	t.Helper()
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: cn, Organization: groups}}
	csr := &certificates.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "r"},
		Spec: certificates.CertificateSigningRequestSpec{
			SignerName: signer, Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, usage},
			Username: "system:bootstrap:abcdef", Groups: []string{"system:bootstrappers", join.BootstrapGroup},
		},
	}
	if edit != nil {
		edit(template, csr)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, m.key)
	if err != nil {
		t.Fatal(err)
	}
	csr.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	return csr
}

func (m machine) client(t *testing.T, node string, edit func(*x509.CertificateRequest, *certificates.CertificateSigningRequest)) *certificates.CertificateSigningRequest {
	t.Helper()
	return m.ask(t, certificates.KubeAPIServerClientKubeletSignerName, certificates.UsageClientAuth, nodePrefix+node, []string{"system:nodes"}, edit)
}

// asNode makes the request that of a node with a certificate.
func asNode(name string) func(*x509.CertificateRequest, *certificates.CertificateSigningRequest) {
	return func(_ *x509.CertificateRequest, csr *certificates.CertificateSigningRequest) {
		csr.Spec.Username, csr.Spec.Groups = nodePrefix+name, []string{"system:nodes"}
	}
}

func newTestApprover(objects ...*corev1.Node) *approver {
	client := fake.NewClientset()
	for _, o := range objects {
		_ = client.Tracker().Add(o)
	}
	taken := func(address string) bool { return address == "10.43.0.1" }
	return newApprover(client, taken, slog.New(slog.DiscardHandler))
}

// judged wants a refusal with the word, or none when it is empty.
func judged(t *testing.T, a *approver, csr *certificates.CertificateSigningRequest, word string) {
	t.Helper()
	refusal, err := a.judge(t.Context(), csr)
	if err != nil || (refusal == "") != (word == "") || !strings.Contains(refusal, word) {
		t.Errorf("refusal %q, error %v, want %q", refusal, err, word)
	}
}

func TestWhoGetsANodesCertificate(t *testing.T) {
	one, other := newMachine(t), newMachine(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	a := newTestApprover(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "server"}})

	judged(t, a, one.client(t, "server", nil), "another machine has the node name server")
	judged(t, a, one.client(t, "n1", nil), "")
	judged(t, a, one.client(t, "n1", nil), "")
	judged(t, a, other.client(t, "n1", nil), "another machine has the node name n1") // the first has not registered yet
	a.identities.now = func() time.Time { return time.Now().Add(settling + time.Minute) }
	if _, err := a.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	judged(t, a, other.client(t, "n1", nil), "--replace n1")
	judged(t, a, one.client(t, "n1", asNode("n1")), "")
	judged(t, a, one.client(t, "n2", asNode("n1")), "asks for a certificate of the node n2")

	if err := a.client.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	judged(t, a, other.client(t, "n1", nil), "")
	judged(t, a, one.client(t, "n1", asNode("n1")), "was replaced")
}

func TestTokensForReplacing(t *testing.T) {
	one, other := newMachine(t), newMachine(t)
	a := newTestApprover(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
	secret := join.Grant{Replaces: []string{"n1"}}.Secret(join.Token{ID: "abcdef", Secret: "0123456789abcdef"}, join.TokenCreated)
	if _, err := a.client.CoreV1().Secrets("kube-system").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	judged(t, a, one.client(t, "n1", nil), "")
	judged(t, a, other.client(t, "n2", nil), "another machine")
	if err := a.identities.forget(t.Context(), "n1"); err != nil {
		t.Fatal(err)
	}
	// A node whose identity was lost, as by going back to a snapshot, keeps its place.
	judged(t, a, other.client(t, "n1", asNode("n1")), "")
}

type change = func(*x509.CertificateRequest, *certificates.CertificateSigningRequest)

func TestNobodyGetsMoreThanANode(t *testing.T) {
	m, a := newMachine(t), newTestApprover()
	for word, edit := range map[string]change{
		"not the user of a node": func(r *x509.CertificateRequest, _ *certificates.CertificateSigningRequest) {
			r.Subject.CommonName = "system:admin"
		},
		"groups of a node": func(r *x509.CertificateRequest, _ *certificates.CertificateSigningRequest) {
			r.Subject.Organization = []string{"system:nodes", "system:masters"}
		},
		"no names of servers": func(r *x509.CertificateRequest, _ *certificates.CertificateSigningRequest) {
			r.DNSNames = []string{"kubernetes"}
		},
		"is not for this kind": func(_ *x509.CertificateRequest, c *certificates.CertificateSigningRequest) {
			c.Spec.Usages = append(c.Spec.Usages, certificates.UsageServerAuth)
		},
	} {
		judged(t, a, m.client(t, "n1", edit), word)
	}
}

func TestServingCertificates(t *testing.T) {
	m, a := newMachine(t), newTestApprover()
	ask := func(edits ...change) *certificates.CertificateSigningRequest {
		return m.ask(t, certificates.KubeletServingSignerName, certificates.UsageServerAuth, nodePrefix+"n1", []string{"system:nodes"},
			func(r *x509.CertificateRequest, c *certificates.CertificateSigningRequest) {
				r.DNSNames, r.IPAddresses = []string{"n1"}, []net.IP{net.IPv4(192, 0, 2, 7)}
				for _, e := range append([]change{asNode("n1")}, edits...) {
					e(r, c)
				}
			})
	}
	judged(t, a, ask(), "")
	judged(t, a, ask(asNode("n2")), "not that of the node n2")
	judged(t, a, ask(func(r *x509.CertificateRequest, _ *certificates.CertificateSigningRequest) {
		r.DNSNames = []string{"n1", "kubernetes"}
	}), "one DNS name")
	judged(t, a, ask(func(r *x509.CertificateRequest, _ *certificates.CertificateSigningRequest) {
		r.IPAddresses = []net.IP{net.IPv4(10, 43, 0, 1)}
	}), "belongs to another")
	judged(t, a, ask(func(_ *x509.CertificateRequest, c *certificates.CertificateSigningRequest) {
		c.Spec.Username, c.Spec.Groups = "system:bootstrap:abcdef", []string{join.BootstrapGroup}
	}), "only a node")
}

func TestUsersOfEveryNode(t *testing.T) {
	m, a := newMachine(t), newTestApprover()
	ask := func(cn string, groups []string, edit change) *certificates.CertificateSigningRequest {
		return m.ask(t, certificates.KubeAPIServerClientSignerName, certificates.UsageClientAuth, cn, groups, edit)
	}
	judged(t, a, ask("system:kube-proxy", nil, asNode("n1")), "")
	judged(t, a, ask(join.DNSUser.Name(), join.DNSUser.Groups(), asNode("n1")), "")
	judged(t, a, ask("system:kube-proxy", []string{"system:masters"}, asNode("n1")), "not a user that nodes act as")
	judged(t, a, ask("system:kube-scheduler", nil, asNode("n1")), "not a user that nodes act as")
	judged(t, a, ask("system:kube-proxy", nil, nil), "only a node")
}

// TestOtherPeoplesRequestsAreLeftAlone: people decide about theirs, and nobody twice.
func TestOtherPeoplesRequestsAreLeftAlone(t *testing.T) {
	m := newMachine(t)
	csr := m.client(t, "n1", nil)
	if !ours(csr) {
		t.Error("a joining node is left alone")
	}
	decided := csr.DeepCopy()
	decided.Status.Conditions = []certificates.CertificateSigningRequestCondition{{Type: certificates.CertificateDenied}}
	user := csr.DeepCopy()
	user.Spec.Username, user.Spec.Groups = "jane", []string{"developers"}
	own := csr.DeepCopy()
	own.Spec.SignerName = "example.org/signer"
	for name, c := range map[string]*certificates.CertificateSigningRequest{"decided": decided, "jane's": user, "another signer's": own} {
		if ours(c) {
			t.Errorf("the %s request is decided here", name)
		}
	}
}

func TestRequestsThatCannotBeReadAreRefused(t *testing.T) {
	m, a := newMachine(t), newTestApprover()
	csr := m.client(t, "n1", nil)
	csr.Spec.Request = []byte("garbage")
	judged(t, a, csr, "not PEM")
	csr.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte("garbage")})
	judged(t, a, csr, "cannot be read")
}
