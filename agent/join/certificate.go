package join

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/keyutil"

	"github.com/clusterd/clusterd/internal/atomicfile"
)

// certificate is one that the node needs, with where it is kept.
type certificate struct {
	cert, key string // paths
	signer    string
	user      string
	groups    []string
	dns       []string
	ips       []netip.Addr
	usage     certificates.KeyUsage
}

const (
	decisionTimeout = 30 * time.Second
	decisionPoll    = 200 * time.Millisecond
)

// renewAt is when a certificate that is there is made anew: when a third of its time is left.
func renewAt(c *x509.Certificate) time.Time {
	return c.NotAfter.Add(-c.NotAfter.Sub(c.NotBefore) / 3)
}

// lasts says until when the certificate on disk will do; the zero time if there is none of use.
func (c certificate) lasts(now time.Time) time.Time {
	cert, err := c.load()
	if err != nil || now.Before(cert.NotBefore) || !now.Before(cert.NotAfter) {
		return time.Time{}
	}
	return renewAt(cert)
}

// valid is whether the certificate on disk can be used now, though it may be due for renewal.
func (c certificate) valid(now time.Time) bool {
	cert, err := c.load()
	return err == nil && !now.Before(cert.NotBefore) && now.Before(cert.NotAfter)
}

// load reads the certificate and checks that it is the one that is wanted and belongs to the key.
func (c certificate) load() (*x509.Certificate, error) {
	cert, err := c.pair()
	if err != nil {
		return nil, err
	}
	if cert.Subject.CommonName != c.user || !slices.Equal(cert.DNSNames, c.dns) || !slices.Equal(addresses(cert.IPAddresses), c.ips) {
		return nil, errors.New("of another subject")
	}
	return cert, nil
}

// pair reads the certificate and checks that it belongs to the key.
func (c certificate) pair() (*x509.Certificate, error) {
	data, err := os.ReadFile(c.cert)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("not PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, err
	}
	key, err := readKey(c.key)
	if err != nil {
		return nil, err
	}
	if public, ok := key.Public().(*ecdsa.PublicKey); !ok || !public.Equal(cert.PublicKey) {
		return nil, errors.New("of another key")
	}
	return cert, nil
}

func addresses(ips []net.IP) (all []netip.Addr) {
	for _, ip := range ips {
		if a, ok := netip.AddrFromSlice(ip); ok {
			all = append(all, a.Unmap())
		}
	}
	return all
}

// request asks the cluster for the certificate and writes it, with its key if there is none yet.
func (c certificate) request(ctx context.Context, client clientset.Interface) error {
	key, err := ensureKey(c.key)
	if err != nil {
		return final{err}
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: c.user, Organization: c.groups}, DNSNames: c.dns}
	for _, a := range c.ips {
		template.IPAddresses = append(template.IPAddresses, a.AsSlice())
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return final{fmt.Errorf("make a request for the certificate %s: %w", c.cert, err)}
	}
	issued, err := issue(ctx, client, &certificates.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "clusterd-"},
		Spec: certificates.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: c.signer,
			Usages:     []certificates.KeyUsage{certificates.UsageDigitalSignature, c.usage},
		},
	})
	if err != nil {
		return fmt.Errorf("get a certificate of %s: %w", c.user, err)
	}
	if err := atomicfile.WriteDurable(c.cert, 0o644, issued); err != nil {
		return final{err}
	}
	if _, err := c.load(); err != nil {
		return final{fmt.Errorf("the certificate %s that the cluster has issued is %w", c.cert, err)}
	}
	return nil
}

// issue hands in a request and waits for the certificate.
func issue(ctx context.Context, client clientset.Interface, csr *certificates.CertificateSigningRequest) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, decisionTimeout)
	defer cancel()
	requests := client.CertificatesV1().CertificateSigningRequests()
	made, err := requests.Create(ctx, csr, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("hand in the request: %w", err)
	}
	var issued []byte
	err = wait.PollUntilContextCancel(ctx, decisionPoll, true, func(ctx context.Context) (bool, error) {
		now, err := requests.Get(ctx, made.Name, metav1.GetOptions{})
		if err != nil {
			return false, nil // the server may be starting again; the time is bounded
		}
		for _, d := range now.Status.Conditions {
			if d.Status == corev1.ConditionTrue && (d.Type == certificates.CertificateDenied || d.Type == certificates.CertificateFailed) {
				return false, final{errors.New(d.Message)}
			}
		}
		issued = now.Status.Certificate
		return len(issued) > 0, nil
	})
	if wait.Interrupted(err) {
		return nil, fmt.Errorf("the request %s was not decided in %s", made.Name, decisionTimeout)
	}
	return issued, err
}

// ensureKey reads the key at path, or makes it. One that a power cut has truncated is made again.
func ensureKey(path string) (crypto.Signer, error) {
	if key, err := readKey(path); err == nil {
		return key, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key %s: %w", path, err)
	}
	data, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, fmt.Errorf("make the key %s: %w", path, err)
	}
	return key, atomicfile.WriteDurable(path, 0o600, data)
}

func readKey(path string) (crypto.Signer, error) {
	key, err := keyutil.PrivateKeyFromFile(path)
	if err != nil {
		return nil, err
	}
	signer, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s is not an ECDSA key", path)
	}
	return signer, nil
}
