//go:build e2e

package e2e

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"

	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/pki"
)

// testRenewal puts certificates that are near their end below the running server, gives the machine another address, which
// makes it look at them, and wants new ones in use without a restart: the API server's, the kubelet's and the kubeconfig's.
func (s *suite) testRenewal(t *testing.T) {
	old := s.agedCertificates(t)
	if out, err := s.Node.Output(t.Context(), "ip", "addr", "add", "192.0.2.1/32", "dev", "lo"); err != nil {
		t.Fatal(out, err)
	}
	const fresh = 360 * 24 * time.Hour
	eventually(t, 2*time.Minute, func(context.Context) string {
		for _, port := range []string{"6443", "10250"} {
			cert := s.serving(t, port)
			if serial := cert.SerialNumber.String(); serial == old[port] || time.Until(cert.NotAfter) < fresh {
				return "port " + port + " still shows a certificate that ends " + cert.NotAfter.String()
			}
		}
		config, err := clientcmd.LoadFromFile(s.Node.Path(datadir.Kubeconfig))
		if err != nil {
			return err.Error()
		}
		for _, user := range config.AuthInfos {
			certs, err := certutil.ParseCertsPEM(user.ClientCertificateData)
			if err != nil {
				return err.Error()
			}
			if time.Until(certs[0].NotAfter) < fresh {
				return "the kubeconfig has a certificate that ends " + certs[0].NotAfter.String()
			}
		}
		return ""
	})
	if out := s.kubectl(t, "get", "nodes", "--output=name"); strings.TrimSpace(out) != "node/"+s.Node.Name() {
		t.Errorf("kubectl with the new certificate gives %q", out)
	}
}

// agedCertificates replaces certificates by ones that differ only in that they have a day left, and returns the serial
// numbers of those that are served.
func (s *suite) agedCertificates(t *testing.T) map[string]string {
	t.Helper()
	served := map[string]string{"6443": s.serving(t, "6443").SerialNumber.String(), "10250": s.serving(t, "10250").SerialNumber.String()}
	for name, by := range map[string]string{"client-admin": pki.ClientCA, "serving-kube-apiserver": pki.ServerCA, "serving-kubelet": pki.ServerCA} {
		leaf, ca := s.keyPair(t, name), s.keyPair(t, by)
		aged := *leaf.Leaf
		aged.SerialNumber, aged.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(24*time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, &aged, ca.Leaf, aged.PublicKey, ca.PrivateKey)
		if err != nil {
			t.Fatal(err)
		}
		cert, _ := pki.Dir(dirs.ServerTLS()).Path(name)
		put(t, s.Cluster, cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	}
	return served
}

func (s *suite) keyPair(t *testing.T, name string) tls.Certificate {
	t.Helper()
	cert, key := pki.Dir(s.Node.Path(dirs.ServerTLS())).Path(name)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}
