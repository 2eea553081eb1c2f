// Package dns answers the cluster's names on the node itself.
//
// What it promises:
//   - Names of the cluster are answered from memory, whether or not the host has
//     a resolver, a default route or any network at all.
//   - Other names go to the host's resolvers as they are at that moment: a change
//     is picked up while serving, without dropping a query. When there are none,
//     the answer is SERVFAIL at once, which no resolver remembers for long.
//   - It listens on the given addresses and port only, over UDP and TCP.
//
// Why in the process and on each node: a pod's query never leaves its node, and
// there is no DNS pod to schedule, pull or restart. The Service kube-dns has no
// selector; its EndpointSlices are published by the nodes ([PublishEndpoints]).
//
// Why CoreDNS's handlers without its configuration language: the parts are
// fixed. Started by hand they report a port that cannot be opened as an error
// and need nothing process-wide. The setup function of its kubernetes plugin,
// for one, would replace the logger of every Kubernetes component.
package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
)

// syncCheck is how often the start looks whether the caches are filled.
const syncCheck = 20 * time.Millisecond

// publishBackoff spaces the tries to publish the endpoints, in case the API is
// not there yet: at most one in half a minute.
var publishBackoff = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 9, Cap: 30 * time.Second}

// Config says where to listen and what to answer.
type Config struct {
	// Addresses gives the addresses to listen on, required. It is called once, in Run.
	Addresses func() []netip.Addr
	// Port is the UDP and TCP port, required.
	Port int
	// Domain is the cluster's domain; cluster.local when empty.
	Domain string
	// ServiceCIDRs and PodCIDRs are the ranges whose addresses are answered with names.
	ServiceCIDRs, PodCIDRs []netip.Prefix
	// Upstreams gives the host's resolvers, as address or address:port. Nil is none.
	Upstreams func() ([]string, error)
	// ResolvConf are files whose change makes Upstreams be asked again at once.
	// Without any it is asked every five minutes anyway.
	ResolvConf []string
	// RESTConfig reaches the API, required: list and watch of services,
	// endpointslices and namespaces.
	RESTConfig *rest.Config
	// Publish tells the cluster where this server listens, once it answers. Nil
	// publishes nothing.
	Publish func(ctx context.Context, addrs []netip.Addr, port int) error
}

// Server is the node's DNS server, a lifecycle component.
type Server struct {
	cfg Config
	log *slog.Logger
}

// New checks c. It does no I/O.
func New(c Config, log *slog.Logger) (*Server, error) {
	if c.Addresses == nil || c.RESTConfig == nil || c.Port < 1 || c.Port > 65535 {
		return nil, errors.New("dns: addresses, a port and the API are required")
	}
	if c.Domain == "" {
		c.Domain = "cluster.local"
	}
	if c.Upstreams == nil {
		c.Upstreams = func() ([]string, error) { return nil, nil }
	}
	return &Server{cfg: c, log: log}, nil
}

// Name is the component's name in logs and errors.
func (s *Server) Name() string { return "dns" }

// Run listens, and calls ready when the cluster's names can be answered and the
// endpoints are published. Until the names are known it answers SERVFAIL.
func (s *Server) Run(ctx context.Context, ready func()) error {
	addrs := s.cfg.Addresses()
	if len(addrs) == 0 {
		return errors.New("no address to listen on")
	}
	names, err := newCluster(s.cfg)
	if err != nil {
		return fmt.Errorf("configure cluster names: %w", err)
	}
	up := newForwarder(ctx)
	s.refresh(up, addrs)
	listeners, err := listen(ctx, addrs, s.cfg.Port, chain(names, up, s.log))
	if err != nil || ctx.Err() != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var parts sync.WaitGroup
	parts.Go(func() { names.run(ctx) })
	parts.Go(func() { s.follow(ctx, up, addrs) })
	parts.Go(func() {
		if s.announce(ctx, names, addrs) {
			ready()
		}
	})
	err = listeners.serve(ctx)
	cancel()
	parts.Wait()
	return err
}

// announce waits for the cluster's names and publishes where they are answered.
// It reports whether that happened before ctx ended.
func (s *Server) announce(ctx context.Context, names *cluster, addrs []netip.Addr) bool {
	err := wait.PollUntilContextCancel(ctx, syncCheck, true, func(context.Context) (bool, error) {
		return names.synced(), nil
	})
	if err != nil {
		return false
	}
	if s.cfg.Publish == nil {
		return true
	}
	var last string
	err = publishBackoff.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		err := s.cfg.Publish(ctx, addrs, s.cfg.Port)
		if err != nil && err.Error() != last && ctx.Err() == nil {
			last = err.Error()
			s.log.Debug("DNS endpoints are not published yet", "error", err)
		}
		return err == nil, nil
	})
	return err == nil
}
