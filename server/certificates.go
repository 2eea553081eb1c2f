package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/clusterd/clusterd/internal/hostos"
	"github.com/clusterd/clusterd/internal/join"
	"github.com/clusterd/clusterd/internal/kubeconfig"
	"github.com/clusterd/clusterd/internal/pki"
	"github.com/clusterd/clusterd/server/apiserver"
)

// The names of the certificates, which are also those of their files in the data directory.
const (
	servingAPI     = "serving-kube-apiserver"
	servingKubelet = "serving-kubelet"
	clientAdmin    = "client-admin"
	clientKubelet  = "client-kube-apiserver"
	clientProxy    = "client-auth-proxy"
)

// renewInterval is how often certificates are looked at, besides whenever the machine's addresses or its clock have changed.
// They are renewed 90 days before their end, so the hour is for hosts that do not tell of their clock.
const renewInterval = time.Hour

// certificates keeps the control plane's certificates, and the administrator's kubeconfig that holds one of them, valid.
// They follow the machine's addresses.
type certificates struct {
	cfg Config
	d   Deps
	// clockChanges is hostos.ClockChanges: certificates that were made while the clock was wrong are made again as soon as
	// it is right.
	clockChanges func(context.Context) (<-chan struct{}, error)
}

func newCertificates(cfg Config, d Deps) *certificates {
	return &certificates{cfg: cfg, d: d, clockChanges: hostos.ClockChanges}
}

// Name is the component's name.
func (c *certificates) Name() string { return "certificates" }

// Run is ready when all certificates and the kubeconfig are there.
func (c *certificates) Run(ctx context.Context, ready func()) error {
	p, err := pki.Open(string(c.d.PKI), pki.Options{Log: c.d.Log})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := p.Renewer("certificates", renewInterval, c.leaves, c.changed)
	if err := c.follow(ctx, r.Kick); err != nil {
		return err
	}
	var failed error
	err = r.Run(ctx, func() {
		if failed = c.writeKubeconfig(); failed != nil { // also when somebody has removed it
			cancel()
			return
		}
		ready()
	})
	return errors.Join(failed, err)
}

// follow calls kick when what the certificates depend on has changed: the machine's addresses or its clock.
func (c *certificates) follow(ctx context.Context, kick func()) error {
	each := func(changes <-chan struct{}) {
		for range changes {
			kick()
		}
	}
	addresses, err := hostos.AddressChanges(ctx)
	if err != nil {
		return err
	}
	go each(addresses)
	clock, err := c.clockChanges(ctx)
	if err != nil {
		c.d.Log.Debug("the clock is looked at now and then only", "error", err)
		return nil
	}
	go each(clock)
	return nil
}

// changed brings the kubeconfig up to date when its certificate has been renewed.
func (c *certificates) changed(name string) {
	if name != clientAdmin {
		return
	}
	if err := c.writeKubeconfig(); err != nil {
		c.d.Log.Warn("kubeconfig not renewed", "error", err)
	}
}

// leaves are the certificates that have to be there, with the addresses that the machine has now.
func (c *certificates) leaves() ([]pki.Leaf, error) {
	ips, err := hostos.LocalAddresses(c.d.OwnLinks...)
	if err != nil {
		return nil, err
	}
	return append(c.clients(), c.servingAPI(ips), c.servingKubelet(ips)), nil
}

func (c *certificates) clients() []pki.Leaf {
	client := func(name, ca, cn string, orgs ...string) pki.Leaf {
		return pki.Leaf{Name: name, CA: ca, CommonName: cn, Organizations: orgs, Client: true}
	}
	return []pki.Leaf{
		client(clientAdmin, pki.ClientCA, "system:admin", user.SystemPrivilegedGroup),
		client(clientKubelet, pki.ClientCA, apiserver.KubeletUser),
		client(clientProxy, pki.RequestHeaderCA, "system:auth-proxy"),
	}
}

func (c *certificates) servingAPI(ips []net.IP) pki.Leaf {
	domain := c.cfg.ClusterDomain
	l := pki.Leaf{Name: servingAPI, CA: pki.ServerCA, CommonName: "kube-apiserver", Server: true, Chain: true, IPs: ips,
		DNS: []string{"localhost", c.cfg.NodeName, join.ServerName, "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + domain}}
	for _, p := range c.cfg.ServiceCIDRs { // the Service kubernetes has the first address of each range
		l.IPs = append(l.IPs, p.Masked().Addr().Next().AsSlice())
	}
	for _, s := range append(c.cfg.TLSSANs, advertise(c.cfg, c.d).String()) {
		if ip := net.ParseIP(s); ip != nil {
			l.IPs = append(l.IPs, ip)
		} else {
			l.DNS = append(l.DNS, s)
		}
	}
	return l
}

func (c *certificates) servingKubelet(ips []net.IP) pki.Leaf {
	return pki.Leaf{Name: servingKubelet, CA: pki.ServerCA, CommonName: "system:node:" + c.cfg.NodeName,
		Organizations: []string{user.NodesGroup}, DNS: []string{c.cfg.NodeName, "localhost"}, IPs: ips, Server: true}
}

// writeKubeconfig writes the administrator's kubeconfig; it does nothing when that is up to date.
func (c *certificates) writeKubeconfig() error {
	ca, _, err := c.d.PKI.Read(pki.ServerCA)
	if err != nil {
		return err
	}
	cert, key, err := c.d.PKI.Read(clientAdmin)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.cfg.WriteKubeconfig), 0o755); err != nil {
		return fmt.Errorf("make the kubeconfig's directory: %w", err)
	}
	return kubeconfig.Write(c.cfg.WriteKubeconfig, c.cfg.WriteKubeconfigMode, kubeconfig.Config{
		Server: LocalURL(c.cfg), CA: ca, Cert: cert, Key: key})
}

// LocalURL is where this machine's own clients reach the API server.
func LocalURL(cfg Config) string {
	host := cfg.BindAddress
	switch {
	case !host.IsValid() || (host.IsUnspecified() && host.Is4()):
		host = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case host.IsUnspecified():
		host = netip.IPv6Loopback()
	}
	return "https://" + net.JoinHostPort(host.String(), strconv.Itoa(cfg.HTTPSListenPort))
}

// files are the API server's.
func files(p pki.Dir) apiserver.Files {
	f := apiserver.Files{ServiceAccountKey: p.ServiceKey()}
	f.Cert, f.Key = p.Path(servingAPI)
	f.ClientCA, _ = p.Path(pki.ClientCA)
	f.ServerCA, _ = p.Path(pki.ServerCA)
	f.RequestHeaderCA, _ = p.Path(pki.RequestHeaderCA)
	f.ProxyCert, f.ProxyKey = p.Path(clientProxy)
	f.KubeletCert, f.KubeletKey = p.Path(clientKubelet)
	return f
}

// NodeFiles are the certificates of the node that shares the server's process.
type NodeFiles struct {
	ClientCA                string
	ServingCert, ServingKey string
}

// LocalNodeFiles are the paths of the local node's certificates, which the server issues and renews.
func LocalNodeFiles(p pki.Dir) NodeFiles {
	var f NodeFiles
	f.ClientCA, _ = p.Path(pki.ClientCA)
	f.ServingCert, f.ServingKey = p.Path(servingKubelet)
	return f
}
