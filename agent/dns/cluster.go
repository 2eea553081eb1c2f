package dns

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/coredns/caddy"
	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/plugin/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// ttl is how long, in seconds, a client may keep an answer about the cluster.
const ttl = 5

// cluster answers for the cluster's domain and address ranges.
type cluster struct {
	*kubernetes.Kubernetes
	stop func() error
}

// newCluster prepares the handler and its caches; run fills them.
func newCluster(c Config) (*cluster, error) {
	k, err := parseStanza(stanza(c))
	if err != nil {
		return nil, err
	}
	k.ClientConfig = fixedConfig{c.RESTConfig}
	_, stop, err := k.InitKubeCache(context.Background())
	if err != nil {
		return nil, err
	}
	return &cluster{Kubernetes: k, stop: stop}, nil
}

// run keeps the caches up to date until ctx ends.
func (c *cluster) run(ctx context.Context) {
	defer context.AfterFunc(ctx, func() { _ = c.stop() })()
	c.APIConn.Run()
}

// synced reports whether every name is known.
func (c *cluster) synced() bool { return c.APIConn.HasSynced() }

// stanza says in CoreDNS's words what the kubernetes handler is to answer. That
// is the only way to set some of its options.
func stanza(c Config) string {
	zones := []string{c.Domain}
	for _, ranges := range [][]netip.Prefix{c.ServiceCIDRs, c.PodCIDRs} {
		for _, r := range ranges {
			zones = append(zones, r.Masked().String())
		}
	}
	return fmt.Sprintf("kubernetes %s {\n\tpods insecure\n\tttl %d\n}\n", strings.Join(zones, " "), ttl)
}

func parseStanza(text string) (*kubernetes.Kubernetes, error) {
	c := &caddy.Controller{Dispenser: caddyfile.NewDispenser("clusterd", strings.NewReader(text))}
	c.Next()
	return kubernetes.ParseStanza(c)
}

// fixedConfig is a clientcmd.ClientConfig that knows its answer.
type fixedConfig struct{ rest *rest.Config }

var _ clientcmd.ClientConfig = fixedConfig{}

func (f fixedConfig) ClientConfig() (*rest.Config, error) { return rest.CopyConfig(f.rest), nil }

func (f fixedConfig) RawConfig() (clientcmdapi.Config, error) { return clientcmdapi.Config{}, nil }

func (f fixedConfig) Namespace() (string, bool, error) { return "", false, nil }

func (f fixedConfig) ConfigAccess() clientcmd.ConfigAccess { return nil }
