package join

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/authentication/user"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/clusterd/clusterd/internal/hostos"
	"github.com/clusterd/clusterd/internal/join"
	"github.com/clusterd/clusterd/internal/lifecycle"
	"github.com/clusterd/clusterd/internal/twice"
)

// Info is what the node knows of its cluster.
func (m *Member) Info() join.Info { return m.record.Info }

// URL is where the servers are reached on this machine.
func (m *Member) URL() string { return m.balancer.URL() }

// Files are the paths of certificates and keys, PEM.
type Files struct {
	ClientCA                string
	ServingCert, ServingKey string
}

// Files are the node's.
func (m *Member) Files() Files {
	return Files{
		ClientCA:    m.path("client-ca.crt"),
		ServingCert: m.path("serving-kubelet.crt"), ServingKey: m.path("serving-kubelet.key"),
	}
}

// API makes a client configuration that acts as u, who has to be the node or one of those that run on every node.
func (m *Member) API(u user.Info, agent string) *rest.Config {
	c := &rest.Config{
		Host: m.URL(), UserAgent: agent, QPS: -1, DisableCompression: true,
		TLSClientConfig: rest.TLSClientConfig{CAFile: m.path("server-ca.crt"), ServerName: join.ServerName},
		ContentConfig: rest.ContentConfig{
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
			ContentType:        "application/vnd.kubernetes.protobuf",
		},
	}
	if i := slices.IndexFunc(m.fixed(), func(f certificate) bool { return f.user == u.GetName() }); i >= 0 {
		c.CertFile, c.KeyFile = m.fixed()[i].cert, m.fixed()[i].key
	}
	return c
}

// Connections is the component that leads to the servers; everything else needs it.
func (m *Member) Connections() lifecycle.Component { return m.balancer }

// Balancer leads to the servers.
func (m *Member) Balancer() *Balancer { return m.balancer }

// Fallback is the host and port of the URL that was joined by.
func (m *Member) Fallback() string { return m.balancer.fallback }

// TLS is for connections to a server, with the node's certificate as it is now.
func (m *Member) TLS() (*tls.Config, error) {
	return rest.TLSConfigFor(m.at("https://"+m.balancer.fallback, m.identity(m.kubelet()), ""))
}

// Loops are the components that keep the machine a member.
func (m *Member) Loops() []lifecycle.Component {
	return []lifecycle.Component{
		lifecycle.Func("certificates", m.keepCertificates),
		lifecycle.Func("servers", m.followServers),
	}
}

// Certificates are looked at when they are due, when the machine's addresses or clock have changed, and after a renewal that
// did not work, at first soon and at last as rarely as lookAgain.
const (
	lookAgain = time.Minute
	longest   = 24 * time.Hour // timers that are longer may be fooled by a sleeping machine
)

func (m *Member) keepCertificates(ctx context.Context, ready func()) error {
	ready()
	kick := make(chan struct{}, 1)
	if err := m.follow(ctx, kick); err != nil {
		return err
	}
	said, again := "", firstRetry
	for {
		wait, err := m.renew(ctx)
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			m.log.Warn("certificates not renewed, trying again", "error", err)
		}
		if err == nil {
			said, again = "", firstRetry
		} else {
			wait, again = again, min(2*again, lookAgain)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-kick:
		case <-time.After(wait):
		}
	}
}

// follow sends to kick when what certificates depend on has changed.
func (m *Member) follow(ctx context.Context, kick chan<- struct{}) error {
	changes, err := hostos.AddressChanges(ctx)
	if err != nil {
		return err
	}
	each := func(changes <-chan struct{}) {
		for range changes {
			select {
			case kick <- struct{}{}:
			default:
			}
		}
	}
	go each(changes)
	if clock, err := m.clockChanges(ctx); err == nil {
		go each(clock)
	}
	return nil
}

// renew makes the certificates anew that are due, and says when to look again.
func (m *Member) renew(ctx context.Context) (time.Duration, error) {
	serving, err := m.serving()
	if err != nil {
		return lookAgain, err
	}
	now := m.now()
	next := now.Add(longest)
	for _, c := range append(m.fixed(), serving) {
		until := c.lasts(now)
		if now.Before(until) {
			next = earlier(next, until)
			continue
		}
		client, err := clientset.NewForConfig(m.renewer())
		if err != nil {
			return lookAgain, err
		}
		if err := c.request(ctx, client); err != nil {
			return lookAgain, err
		}
		m.log.Info("certificate renewed", "user", c.user, "file", c.cert)
		if err := twice.Save(m.cfg.Dir.AgentCopies(), m.lasting()...); err != nil {
			return lookAgain, err
		}
	}
	return next.Sub(now), nil
}

// renewer is who asks for certificates: the node itself, or, if its certificate has ended, the holder of the token.
func (m *Member) renewer() *rest.Config {
	if t, err := join.Parse(m.cfg.Token); err == nil && !m.kubelet().valid(m.now()) {
		return m.at(m.URL(), rest.TLSClientConfig{}, t.Bearer())
	}
	return m.at(m.URL(), m.identity(m.kubelet()), "")
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// followServers keeps the list of servers as the cluster has it, also on disk.
func (m *Member) followServers(ctx context.Context, ready func()) error {
	config := m.at(m.URL(), m.identity(m.kubelet()), "")
	config.Timeout = 0 // it watches
	client, err := clientset.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make the client for the list of servers: %w", err)
	}
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, join.InfoName)
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "configmaps", join.InfoNamespace, only),
		ObjectType:    &corev1.ConfigMap{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    m.learn,
			UpdateFunc: func(_, now any) { m.learn(now) },
		},
	})
	ready()
	informer.RunWithContext(ctx)
	return nil
}

// learn takes up what the cluster says of itself. What the node's parts were made with counts from the next start.
func (m *Member) learn(o any) {
	c, ok := o.(*corev1.ConfigMap)
	if !ok {
		return
	}
	info, err := join.Decode([]byte(c.Data[join.InfoKey]))
	if err != nil {
		m.log.Warn("the cluster's description is not taken up", "error", err)
		return
	}
	m.balancer.SetServers(info.Servers)
	m.record.Info = info
	if err := m.save(); err != nil {
		m.log.Warn("the list of servers is not kept", "error", err)
	}
}
