// Package join makes this machine a node of a cluster that runs elsewhere, and keeps it one.
//
// It promises that the server is verified before anything is told to it, that what the user has to mend is said in one line
// and everything else is tried again, that a machine which has joined starts again without a token and without a server,
// and that its certificates are renewed while it runs. Private keys never leave the machine.
package join

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	certificates "k8s.io/api/certificates/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/clusterd/clusterd/internal/atomicfile"
	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/hostos"
	"github.com/clusterd/clusterd/internal/join"
	"github.com/clusterd/clusterd/internal/twice"
)

// Config is what a node joins with.
type Config struct {
	// URL is a server's, https://HOST:PORT. Empty: the one that was joined before.
	URL string
	// Token is needed for the first time only.
	Token    string
	NodeName string
	// FormerName is the node that this machine has been so far, if it is to be another one. Optional.
	FormerName string
	NodeIPs    []netip.Addr
	// Balance is the local address at which the servers are reached.
	Balance netip.AddrPort
	Dir     datadir.Dir
	// OwnLinks are the network interfaces that the node makes; their addresses are not the machine's.
	OwnLinks []string
}

// Member is a machine that is let in.
type Member struct {
	cfg      Config
	log      *slog.Logger
	record   record
	balancer *Balancer
	dir      string // of the certificates
	now      func() time.Time
	// clockChanges tells when the clock has been set.
	clockChanges func(context.Context) (<-chan struct{}, error)
}

// record is what is kept on disk.
type record struct {
	URL  string    `json:"url"`
	Info join.Info `json:"cluster"`
}

// Enter makes the machine a member: at once when it is one already, else by way of the server at the URL. It returns when
// it has succeeded, when the user has to mend something, or when ctx ends.
func Enter(ctx context.Context, cfg Config, log *slog.Logger) (*Member, error) {
	m := newMember(cfg, log)
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory for certificates: %w", err)
	}
	if err := m.restore(); err != nil {
		return nil, err
	}
	if err := m.load(); err != nil {
		return nil, err
	}
	if err := m.awaitClock(ctx); err != nil {
		return nil, err
	}
	if !m.joined() {
		if err := m.first(ctx); err != nil {
			return nil, err
		}
	}
	if cfg.URL != "" {
		m.record.URL = cfg.URL
	}
	u, err := url.Parse(m.record.URL)
	if err != nil {
		return nil, fmt.Errorf("read the URL of the server: %w", err)
	}
	m.balancer = NewBalancer(cfg.Balance, m.record.Info.Servers, u.Host, log)
	if err := m.save(); err != nil {
		return nil, err
	}
	return m, m.complete(ctx)
}

func newMember(cfg Config, log *slog.Logger) *Member {
	return &Member{cfg: cfg, log: log, dir: cfg.Dir.AgentTLS(), now: time.Now, clockChanges: hostos.ClockChanges}
}

// awaitClock waits, if the node's certificate has ended and there is no token to get another one with, for a clock by which
// it has not: one that is ahead when the machine boots is put right later.
func (m *Member) awaitClock(ctx context.Context) error {
	cert, err := m.kubelet().load()
	if err != nil || m.cfg.Token != "" || m.joined() || len(m.record.Info.Servers) == 0 {
		return nil
	}
	changes, err := m.clockChanges(ctx)
	if err != nil {
		return nil // first says what is missing
	}
	m.log.Warn("the node's certificate has ended, or this machine's clock is ahead: waiting for the clock to be set; if it is right, start with a token (--token)",
		"ended", cert.NotAfter, "clock", m.now())
	for !m.joined() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changes:
		}
	}
	return nil
}

// lasting are the files that the machine needs to prove which node it is, and to find its cluster.
func (m *Member) lasting() []string {
	return []string{m.cfg.Dir.Joined(), m.kubelet().cert, m.kubelet().key}
}

// restore gives back those of the lasting files that a power cut has emptied.
func (m *Member) restore() error {
	restored, err := twice.Restore(m.cfg.Dir.AgentCopies(), m.lasting()...)
	for _, file := range restored {
		m.log.Warn("a file was empty, as after a power cut: it is given back from its second copy", "file", file)
	}
	return err
}

// complete gets the certificates that are missing, as after a power cut, from the servers. The node's own it has.
func (m *Member) complete(ctx context.Context) error {
	serving, err := m.serving()
	if err != nil {
		return err
	}
	missing := slices.DeleteFunc(append(m.fixed(), serving), func(c certificate) bool { _, err := c.pair(); return err == nil })
	if len(missing) == 0 {
		return nil
	}
	for _, c := range missing {
		m.log.Warn("a certificate is missing or damaged: it is made again", "file", c.cert)
	}
	return insist(ctx, m.log, "getting certificates", func(ctx context.Context) error {
		var errs []error
		for _, at := range append(m.record.Info.Servers, m.balancer.fallback) {
			own := m.at("https://"+at, m.identity(m.kubelet()), "")
			err := m.obtain(ctx, own, func() (*rest.Config, error) { return own, nil })
			if err == nil {
				return nil
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
}

// load reads what an earlier start has left. A file that a power cut has emptied is none.
func (m *Member) load() error {
	data, err := os.ReadFile(m.cfg.Dir.Joined())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read what the node knows of its cluster: %w", err)
	}
	var r record
	if json.Unmarshal(data, &r) == nil && len(r.Info.Servers) > 0 {
		m.record = r
	}
	return nil
}

// joined is whether the machine can go on without a token. A certificate that is not valid yet means that the clock is behind:
// the servers' are right, and it is them that look at it.
func (m *Member) joined() bool {
	cert, err := m.kubelet().load()
	return err == nil && m.now().Before(cert.NotAfter) && len(m.record.Info.Servers) > 0
}

// first joins with the token.
func (m *Member) first(ctx context.Context) error {
	at := m.cfg.URL
	if at == "" {
		at = m.record.URL
	}
	if m.cfg.FormerName != "" && (at == "" || m.cfg.Token == "") {
		return fmt.Errorf("this machine is the node %s: to make it the node %s give a token with --token, as for a new node, or leave --node-name out",
			m.cfg.FormerName, m.cfg.NodeName)
	}
	if at == "" || m.cfg.Token == "" {
		return errors.New("this machine is not a node yet, or has been away until its certificate ended: give the server's URL with --join and a token with --token (from server/node-token in the server's data directory, or clusterd token create)")
	}
	t, err := join.Parse(m.cfg.Token)
	if err != nil {
		return fmt.Errorf("the token %w", err)
	}
	m.log.Info("joining", "server", at, "node", m.cfg.NodeName)
	return insist(ctx, m.log, "joining", func(ctx context.Context) error {
		info, err := ask(ctx, at, t)
		if err != nil {
			return err
		}
		m.record = record{URL: at, Info: info}
		if err := m.writeAuthorities(); err != nil {
			return final{err}
		}
		return m.obtain(ctx, m.at(at, rest.TLSClientConfig{}, t.Bearer()), func() (*rest.Config, error) {
			return m.at(at, m.identity(m.kubelet()), ""), nil
		})
	})
}

// obtain gets all certificates that are missing: the node's own by bootstrap, and with that the others.
func (m *Member) obtain(ctx context.Context, bootstrap *rest.Config, own func() (*rest.Config, error)) error {
	if !m.kubelet().valid(m.now()) {
		client, err := clientset.NewForConfig(bootstrap)
		if err != nil {
			return final{err}
		}
		if err := m.kubelet().request(ctx, client); err != nil {
			return err
		}
	}
	config, err := own()
	if err != nil {
		return err
	}
	client, err := clientset.NewForConfig(config)
	if err != nil {
		return final{err}
	}
	serving, err := m.serving()
	if err != nil {
		return err
	}
	for _, c := range append(m.fixed(), serving) {
		if c.valid(m.now()) {
			continue
		}
		if err := c.request(ctx, client); err != nil {
			return err
		}
	}
	return nil
}

func (m *Member) save() error {
	data, err := json.Marshal(m.record)
	if err != nil {
		return fmt.Errorf("keep what the node knows of its cluster: %w", err)
	}
	if old, err := os.ReadFile(m.cfg.Dir.Joined()); err != nil || !slices.Equal(old, data) {
		if err := atomicfile.WriteDurable(m.cfg.Dir.Joined(), 0o600, data); err != nil {
			return err
		}
	}
	return errors.Join(m.writeAuthorities(), twice.Save(m.cfg.Dir.AgentCopies(), m.lasting()...))
}

func (m *Member) writeAuthorities() error {
	return errors.Join(
		atomicfile.Write(m.path("server-ca.crt"), 0o644, []byte(m.record.Info.ServerCA)),
		atomicfile.Write(m.path("client-ca.crt"), 0o644, []byte(m.record.Info.ClientCA)))
}

func (m *Member) path(name string) string { return filepath.Join(m.dir, name) }

// kubelet is the node's own certificate. Its key is what the cluster knows the machine by, and is never changed.
func (m *Member) kubelet() certificate {
	return certificate{
		cert: m.path("client-kubelet.crt"), key: m.path("node.key"),
		signer: certificates.KubeAPIServerClientKubeletSignerName, usage: certificates.UsageClientAuth,
		user: "system:node:" + m.cfg.NodeName, groups: []string{user.NodesGroup},
	}
}

// fixed are the certificates that do not depend on addresses.
func (m *Member) fixed() []certificate {
	client := func(name, user string, groups []string) certificate {
		return certificate{
			cert: m.path(name + ".crt"), key: m.path(name + ".key"),
			signer: certificates.KubeAPIServerClientSignerName, usage: certificates.UsageClientAuth, user: user, groups: groups,
		}
	}
	return []certificate{
		m.kubelet(),
		client("client-kube-proxy", user.KubeProxy, nil),
		client("client-coredns", join.DNSUser.Name(), join.DNSUser.Groups()),
	}
}

// serving is what the kubelet shows to those who call it.
func (m *Member) serving() (certificate, error) {
	found, err := hostos.LocalAddresses(m.cfg.OwnLinks...)
	if err != nil {
		return certificate{}, err
	}
	ips := slices.DeleteFunc(append(addresses(found), m.cfg.NodeIPs...), func(a netip.Addr) bool { return !a.IsGlobalUnicast() })
	slices.SortFunc(ips, netip.Addr.Compare)
	return certificate{
		cert: m.path("serving-kubelet.crt"), key: m.path("serving-kubelet.key"),
		signer: certificates.KubeletServingSignerName, usage: certificates.UsageServerAuth,
		user: "system:node:" + m.cfg.NodeName, groups: []string{user.NodesGroup}, dns: []string{m.cfg.NodeName}, ips: slices.Compact(ips),
	}, nil
}

// at is a client of the server at a URL.
func (m *Member) at(url string, who rest.TLSClientConfig, bearer string) *rest.Config {
	who.CAFile, who.ServerName = m.path("server-ca.crt"), join.ServerName
	return &rest.Config{Host: url, TLSClientConfig: who, BearerToken: bearer, QPS: -1, Timeout: contactTimeout}
}

func (m *Member) identity(c certificate) rest.TLSClientConfig {
	return rest.TLSClientConfig{CertFile: c.cert, KeyFile: c.key}
}
