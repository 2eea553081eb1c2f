package controllers

import (
	"fmt"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/discovery"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/clusterd/clusterd/internal/inproc"
)

// asManager is the user of what the controllers share, whatever its name.
func asManager(string) user.Info { return inproc.User(user.KubeControllerManager) }

// builder makes the controllers' clients: upstream's clientbuilder.ControllerClientBuilder, with a user for each name.
type builder struct {
	t    *inproc.Transport
	user func(name string) user.Info
}

// Config is a client configuration for the named controller.
func (b builder) Config(name string) (*rest.Config, error) {
	return b.t.Config(b.user(name), manager+"/"+name), nil
}

// Client is a clientset for the named controller.
func (b builder) Client(name string) (clientset.Interface, error) {
	c, err := b.Config(name)
	if err != nil {
		return nil, err
	}
	client, err := clientset.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("make the client of %s: %w", name, err)
	}
	return client, nil
}

// DiscoveryClient is a discovery client for the named controller.
func (b builder) DiscoveryClient(name string) (discovery.DiscoveryInterface, error) {
	c, err := b.Client(name)
	if err != nil {
		return nil, err
	}
	return c.Discovery(), nil
}

// ConfigOrDie, ClientOrDie and DiscoveryClientOrDie complete upstream's interface. Making an in-process client fails only for
// a configuration that is wrong in the source.

// ConfigOrDie is Config for callers that take no error.
func (b builder) ConfigOrDie(name string) *rest.Config { return must(b.Config(name)) }

// ClientOrDie is Client for callers that take no error.
func (b builder) ClientOrDie(name string) clientset.Interface { return must(b.Client(name)) }

// DiscoveryClientOrDie is DiscoveryClient for callers that take no error.
func (b builder) DiscoveryClientOrDie(name string) discovery.DiscoveryInterface {
	return must(b.DiscoveryClient(name))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
