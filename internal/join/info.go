package join

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
)

// Path is where a node that has only a token asks for Info, showing the token as the bearer.
const Path = "/clusterd/v1/join"

// ServerName is the name in every API server's certificate. A node checks it instead of the address by which it reached the
// server, which may be a router's.
const ServerName = "kubernetes"

// BootstrapGroup is the group of nodes that have shown a token and have no certificate yet.
const BootstrapGroup = "system:bootstrappers:clusterd"

// The place of Info in the API, for nodes.
const (
	InfoNamespace = "kube-system"
	InfoName      = "clusterd-cluster"
	InfoKey       = "info"
)

// Info is what a node has to know of its cluster.
type Info struct {
	// Servers are the API servers' addresses with ports.
	Servers []string `json:"servers"`
	// ServerCA and ClientCA are the authorities of servers and of clients, PEM.
	ServerCA string `json:"serverCA"`
	ClientCA string `json:"clientCA"`

	ClusterCIDRs []netip.Prefix `json:"clusterCIDRs"`
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs"`
	// FlannelBackend is how nodes send packets between pods to each other.
	FlannelBackend string       `json:"flannelBackend"`
	ClusterDNS     []netip.Addr `json:"clusterDNS"`
	ClusterDomain  string       `json:"clusterDomain"`
	// DNS is whether each node runs the cluster's DNS server.
	DNS bool `json:"dns"`
	// Version is the server's Kubernetes version.
	Version string `json:"version"`
}

// Encode is the form of i in the API and on disk.
func (i Info) Encode() ([]byte, error) { return json.Marshal(i) }

// Decode reads what Encode has written. Fields that it does not know are of a newer server, and left alone.
func Decode(data []byte) (Info, error) {
	var i Info
	if err := json.Unmarshal(data, &i); err != nil {
		return Info{}, fmt.Errorf("read the cluster's description: %w", err)
	}
	if len(i.Servers) == 0 || i.ServerCA == "" || i.ClientCA == "" || len(i.ClusterCIDRs) == 0 || len(i.ServiceCIDRs) == 0 || len(i.ClusterDNS) == 0 {
		return Info{}, fmt.Errorf("read the cluster's description: it is not complete")
	}
	return i, nil
}

// Refusal is the answer at Path to a token that is not good.
type Refusal struct {
	// Reason says what is wrong with the token, and what to do, as the end of a sentence that begins with "the token".
	Reason string `json:"reason"`
}

// CAHash is that of the servers' authority.
func (i Info) CAHash() (string, error) {
	block, _ := pem.Decode([]byte(i.ServerCA))
	if block == nil {
		return "", errors.New("the servers' authority is not PEM")
	}
	ca, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", fmt.Errorf("read the servers' authority: %w", err)
	}
	return HashOf(ca), nil
}
