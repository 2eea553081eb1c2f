// Package join lets other machines become nodes of the cluster.
//
// It promises that nobody becomes a node without a token that is good at that moment, that no machine takes the name of
// another one unless that one's Node is gone or the token was made for it, and that a node gets certificates only for
// itself and for what every node does. What other people ask of the API's signers is left to other people.
package join

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/clusterd/clusterd/internal/atomicfile"
	"github.com/clusterd/clusterd/internal/hostos"
	"github.com/clusterd/clusterd/internal/join"
	"github.com/clusterd/clusterd/internal/token"
)

// Config is what the component is made from. All fields are required unless marked.
type Config struct {
	// RESTConfig acts as the administrator.
	RESTConfig *rest.Config
	// TokenFile holds the server's secret; NodeTokenFile is written with the token that nodes can be given.
	TokenFile, NodeTokenFile string
	// Info describes the cluster. It may be called once the server's certificates are there.
	Info func() (join.Info, error)
	// Changes tells when Info may be another one; optional.
	Changes func(context.Context) (<-chan struct{}, error)
	// Taken are the addresses, and Names the DNS names, that are not a node's.
	Taken func(address string) bool
	// Shared is whether there may be other servers; optional.
	Shared bool
}

// Joining is the component.
type Joining struct {
	cfg     Config
	client  clientset.Interface
	servers *servers // nil when there is only this one
	written join.Token
	log     *slog.Logger
}

// New makes the component. It does no I/O.
func New(cfg Config, log *slog.Logger) (*Joining, error) {
	client, err := clientset.NewForConfig(cfg.RESTConfig)
	if err != nil {
		return nil, fmt.Errorf("make the client for joining nodes: %w", err)
	}
	j := &Joining{cfg: cfg, client: client, log: log}
	if cfg.Shared {
		j.servers = newServers(client)
	}
	return j, nil
}

// Name is the component's name.
func (j *Joining) Name() string { return "joining" }

// retryInterval is how often what the API refuses is tried again.
const retryInterval = 2 * time.Second

// Run is ready when nodes can join.
func (j *Joining) Run(ctx context.Context, ready func()) error {
	token := hostos.FileChanges(ctx, []string{j.cfg.TokenFile}) // from before it is read
	j.insist(ctx)
	if ctx.Err() != nil {
		return nil
	}
	var addresses <-chan struct{}
	if j.cfg.Changes != nil {
		var err error
		if addresses, err = j.cfg.Changes(ctx); err != nil {
			return err
		}
	}
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() { j.follow(ctx, addresses, token) })
	if j.servers != nil {
		following.Go(func() { j.servers.follow(ctx, func() { j.tellServers(ctx) }) })
	}
	taken := func(address string) bool { return j.cfg.Taken(address) || j.servers.has(address) }
	return newApprover(j.client, taken, j.log).run(ctx, ready)
}

// follow publishes what has changed until ctx ends: the server's addresses, or its token, which another server may have
// changed.
func (j *Joining) follow(ctx context.Context, addresses, token <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case _, open := <-addresses:
			if !open { // the host tells no more of them
				addresses = nil
				continue
			}
		case <-token:
			// What is told of are all files in the folder, and publish writes one of them.
			if t, err := j.ownToken(); err == nil && t == j.written {
				continue
			}
		}
		j.insist(ctx)
	}
}

// insist publishes again and again until that has worked.
func (j *Joining) insist(ctx context.Context) {
	for ctx.Err() == nil {
		err := j.publish(ctx)
		if err == nil {
			return
		}
		j.log.Debug("nodes cannot join yet", "error", err)
		pause(ctx, retryInterval)
	}
}

// tellServers tells the nodes which servers there are.
func (j *Joining) tellServers(ctx context.Context) {
	for ctx.Err() == nil {
		info, err := j.info()
		if err == nil {
			err = j.writeInfo(ctx, info)
		}
		if err == nil {
			return
		}
		j.log.Debug("the nodes are not told of the servers yet", "error", err)
		pause(ctx, retryInterval)
	}
}

// info describes the cluster, with all its servers.
func (j *Joining) info() (join.Info, error) {
	info, err := j.cfg.Info()
	if all := j.servers.known(); len(all) > 0 {
		info.Servers = all
	}
	return info, err
}

// publish puts everything in the API that a joining node needs.
func (j *Joining) publish(ctx context.Context) error {
	info, err := j.info()
	if err != nil {
		return err
	}
	if err := j.writeNodeToken(info); err != nil {
		return err
	}
	if err := j.grantRights(); err != nil {
		return err
	}
	if err := j.writeInfo(ctx, info); err != nil {
		return err
	}
	return j.writeToken(ctx)
}

// ownToken is the token that the server's secret stands for.
func (j *Joining) ownToken() (join.Token, error) {
	secret, err := token.Read(j.cfg.TokenFile)
	return join.Split(secret), err
}

func (j *Joining) writeNodeToken(info join.Info) error {
	t, err := j.ownToken()
	if err != nil {
		return err
	}
	if t.CAHash, err = info.CAHash(); err != nil {
		return err
	}
	return atomicfile.Write(j.cfg.NodeTokenFile, 0o600, []byte(t.String()+"\n"))
}

func (j *Joining) writeInfo(ctx context.Context, info join.Info) error {
	maps := j.client.CoreV1().ConfigMaps(join.InfoNamespace)
	have, err := maps.Get(ctx, join.InfoName, metav1.GetOptions{})
	if j.servers != nil && len(j.servers.known()) == 0 && err == nil { // which there are is not known yet: this one is not the only one
		info.Servers = j.servers.begin(have, info.Servers)
	}
	data, broken := info.Encode()
	if broken != nil {
		return fmt.Errorf("describe the cluster: %w", broken)
	}
	switch {
	case apierrors.IsNotFound(err):
		_, err = maps.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: join.InfoName}, Data: map[string]string{join.InfoKey: string(data)},
		}, metav1.CreateOptions{})
		return err
	case err != nil || have.Data[join.InfoKey] == string(data):
		return err
	}
	have.Data = map[string]string{join.InfoKey: string(data)}
	_, err = maps.Update(ctx, have, metav1.UpdateOptions{})
	return err
}

// writeToken makes the server's secret a token of the API, and those that it has replaced none. It does so once for each
// secret: when another server has another one since then, that one counts.
func (j *Joining) writeToken(ctx context.Context) error {
	t, err := j.ownToken()
	if err != nil || t == j.written {
		return err
	}
	if err := join.WriteServerToken(ctx, j.client, t); err != nil {
		return err
	}
	j.written = t
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
