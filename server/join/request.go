package join

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	certificates "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/clusterd/clusterd/internal/join"
)

const nodePrefix = "system:node:"

// request is a certificate signing request of a machine that is or wants to be a node.
type request struct {
	*certificates.CertificateSigningRequest
	x509 *x509.CertificateRequest
	// tokenID is that of the token that was shown; node the name of the node that asks, if it has a certificate.
	tokenID, node string
}

// ours tells requests that this package decides about from those of other people.
func ours(csr *certificates.CertificateSigningRequest) bool {
	switch csr.Spec.SignerName {
	case certificates.KubeAPIServerClientKubeletSignerName, certificates.KubeletServingSignerName, certificates.KubeAPIServerClientSignerName:
	default:
		return false
	}
	for _, c := range csr.Status.Conditions {
		if c.Type == certificates.CertificateApproved || c.Type == certificates.CertificateDenied {
			return false
		}
	}
	return slices.Contains(csr.Spec.Groups, join.BootstrapGroup) ||
		slices.Contains(csr.Spec.Groups, user.NodesGroup) && strings.HasPrefix(csr.Spec.Username, nodePrefix)
}

// parse reads a request that is ours.
func parse(csr *certificates.CertificateSigningRequest) (request, error) {
	r := request{CertificateSigningRequest: csr}
	block, _ := pem.Decode(csr.Spec.Request)
	if block == nil {
		return r, errors.New("the request is not PEM")
	}
	var err error
	if r.x509, err = x509.ParseCertificateRequest(block.Bytes); err != nil {
		return r, fmt.Errorf("the request cannot be read: %w", err)
	}
	if err := r.x509.CheckSignature(); err != nil {
		return r, fmt.Errorf("the request is not signed by its key: %w", err)
	}
	if name, ok := strings.CutPrefix(csr.Spec.Username, nodePrefix); ok {
		r.node = name
	} else {
		r.tokenID, _ = strings.CutPrefix(csr.Spec.Username, "system:bootstrap:")
	}
	return r, nil
}

// key is the fingerprint of the key that the certificate is for.
func (r request) key() string {
	sum := sha256.Sum256(r.x509.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// wanted is the node that a client certificate is asked for.
func (r request) wanted() (string, error) {
	name, ok := strings.CutPrefix(r.x509.Subject.CommonName, nodePrefix)
	switch {
	case !ok || len(validation.IsDNS1123Subdomain(name)) > 0:
		return "", fmt.Errorf("%q is not the user of a node", r.x509.Subject.CommonName)
	case !slices.Equal(r.x509.Subject.Organization, []string{user.NodesGroup}):
		return "", fmt.Errorf("the groups of a node are %s alone", user.NodesGroup)
	case r.node != "" && r.node != name:
		return "", fmt.Errorf("the node %s asks for a certificate of the node %s", r.node, name)
	}
	return name, r.onlyClient()
}

func (r request) onlyClient() error {
	if len(r.names()) > 0 {
		return fmt.Errorf("a client certificate has no names of servers, but %s is asked for", strings.Join(r.names(), ", "))
	}
	return r.uses(certificates.UsageClientAuth)
}

// names are all subject alternative names.
func (r request) names() []string {
	all := slices.Concat(r.x509.DNSNames, r.x509.EmailAddresses)
	for _, ip := range r.x509.IPAddresses {
		all = append(all, ip.String())
	}
	for _, u := range r.x509.URIs {
		all = append(all, u.String())
	}
	return all
}

// uses wants the usage and, beside it, only what every key may be used for.
func (r request) uses(usage certificates.KeyUsage) error {
	for _, u := range r.Spec.Usages {
		if u != usage && u != certificates.UsageDigitalSignature && u != certificates.UsageKeyEncipherment {
			return fmt.Errorf("the usage %q is not for this kind of certificate", u)
		}
	}
	if !slices.Contains(r.Spec.Usages, usage) {
		return fmt.Errorf("the usage %q is missing", usage)
	}
	return nil
}

// serving checks a request for the certificate that a node's kubelet shows. taken tells addresses that are another's.
func (r request) serving(taken func(address string) bool) error {
	switch {
	case r.node == "":
		return errors.New("only a node can ask for it")
	case r.x509.Subject.CommonName != nodePrefix+r.node || !slices.Equal(r.x509.Subject.Organization, []string{user.NodesGroup}):
		return fmt.Errorf("the subject is not that of the node %s", r.node)
	case !slices.Equal(r.x509.DNSNames, []string{r.node}):
		return fmt.Errorf("the one DNS name has to be %s", r.node)
	case len(r.x509.EmailAddresses) > 0 || len(r.x509.URIs) > 0:
		return errors.New("names other than of hosts and addresses are asked for")
	}
	if i := slices.IndexFunc(r.x509.IPAddresses, func(ip net.IP) bool { return taken(ip.String()) }); i >= 0 {
		return fmt.Errorf("the address %s belongs to another", r.x509.IPAddresses[i])
	}
	return r.uses(certificates.UsageServerAuth)
}

// everyNodes are the users, with their groups, that each node acts as beside itself.
var everyNodes = map[string][]string{
	user.KubeProxy:      nil,
	join.DNSUser.Name(): join.DNSUser.Groups(),
}

// service checks a request for a client certificate of something that runs on each node.
func (r request) service() error {
	groups, known := everyNodes[r.x509.Subject.CommonName]
	switch {
	case r.node == "":
		return errors.New("only a node can ask for it")
	case !known || !slices.Equal(r.x509.Subject.Organization, groups):
		return fmt.Errorf("%s is not a user that nodes act as", r.x509.Subject)
	}
	return r.onlyClient()
}
