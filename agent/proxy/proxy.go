// Package proxy makes Services work on the node. For the time being that is upstream's kube-proxy, run in the process.
//
// It promises: the mode that is asked for, /proxyMode and /metrics on 127.0.0.1:10249 and health on 127.0.0.1:10256, and that
// neither another address of the node nor a deleted Node ends it. kube-proxy needs the host's nft or iptables program, and
// does not end before the process does.
package proxy

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/cmd/kube-proxy/app"

	"github.com/clusterd/clusterd/internal/atomicfile"
	"github.com/clusterd/clusterd/internal/upstream"
)

// Config is what the proxy is made from. All fields are required unless marked optional.
type Config struct {
	NodeName     string
	Mode         string // nftables or iptables
	ClusterCIDRs []netip.Prefix
	RESTConfig   *rest.Config // acts as system:kube-proxy
	Kubeconfig   string       // where kube-proxy's kubeconfig is written
	Args         []string     // optional: the user's key=value flags for kube-proxy
	// NodeKnown blocks until the Node has its addresses; its only error is that of ctx. kube-proxy would wait for them too,
	// but end the process when it is stopped meanwhile.
	NodeKnown func(ctx context.Context) error
}

const argFlag = "kube-proxy-arg"

// Proxy is the component.
type Proxy struct {
	cfg  Config
	opts *app.Options
	log  *slog.Logger
}

// New makes a proxy. It does no I/O; its error names every mistake in Args.
func New(cfg Config, log *slog.Logger) (*Proxy, error) {
	o := app.NewOptions()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(fs)
	if err := refuse(cfg.Args); err != nil {
		return nil, err
	}
	if err := upstream.Parse(fs, argFlag, args(cfg), cfg.Args); err != nil {
		return nil, err
	}
	if err := o.Complete(fs); err != nil {
		return nil, fmt.Errorf("--%s: %w", argFlag, err)
	}
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("--%s: %w", argFlag, err)
	}
	return &Proxy{cfg: cfg, opts: o, log: log}, nil
}

// refuse names the flags that make kube-proxy something else than this node's: a configuration file takes the place of all
// flags, and the others end it.
func refuse(args []string) error {
	var errs []error
	for _, a := range args {
		switch key, _, _ := strings.Cut(strings.TrimPrefix(a, "--"), "="); key {
		case "config", "cleanup", "init-only", "write-config-to":
			errs = append(errs, fmt.Errorf("--%s %s: cannot be used here; set kube-proxy's other flags one by one", argFlag, a))
		}
	}
	return errors.Join(errs...)
}

// args are the flags that make kube-proxy ours. The connection tracking limits of the host are left as they are.
func args(c Config) []string {
	return []string{
		"cluster-cidr=" + upstream.Join(c.ClusterCIDRs),
		"conntrack-max-per-core=0",
		"conntrack-tcp-timeout-close-wait=0s",
		"conntrack-tcp-timeout-established=0s",
		"healthz-bind-address=127.0.0.1:10256",
		"hostname-override=" + c.NodeName,
		"kubeconfig=" + c.Kubeconfig,
		"metrics-bind-address=127.0.0.1:10249",
		"nodeport-addresses=all", // the default of nftables is the address that the node has at the start
		"proxy-mode=" + c.Mode,
	}
}

// kubeconfig leads to the feed.
func kubeconfig(server string, ca []byte, secret string) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: local
  cluster: {server: %q, certificate-authority-data: %s}
users:
- name: kube-proxy
  user: {token: %q}
contexts:
- name: local
  context: {cluster: local, user: kube-proxy}
current-context: local
`, server, base64.StdEncoding.EncodeToString(ca), secret)
}

// Name is the component's name.
func (p *Proxy) Name() string { return "service proxy" }

// Run proxies until ctx ends. It is ready at once: rules follow the Services whenever these come.
func (p *Proxy) Run(ctx context.Context, ready func()) error {
	if err := p.feed(ctx); err != nil {
		return err
	}
	ready()
	if p.cfg.NodeKnown(ctx) != nil {
		return nil // it was told to stop
	}
	done := make(chan error, 1)
	go func() { done <- p.opts.Run(ctx) }()
	select {
	case err := <-done:
		if err == nil {
			err = errors.New("it ended")
		}
		return fmt.Errorf("run kube-proxy: %w", err)
	case <-ctx.Done():
		return nil
	}
}

// feed serves kube-proxy its API until ctx ends.
func (p *Proxy) feed(ctx context.Context) error {
	f, err := newFeed(p.cfg.RESTConfig, p.log)
	if err != nil {
		return err
	}
	c, ca, err := newCertificate()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for kube-proxy: %w", err)
	}
	if err := atomicfile.Write(p.cfg.Kubeconfig, 0o600, kubeconfig("https://"+l.Addr().String(), ca, f.secret)); err != nil {
		return errors.Join(fmt.Errorf("write kube-proxy's kubeconfig: %w", err), l.Close())
	}
	go f.serve(ctx, l, c)
	return nil
}
