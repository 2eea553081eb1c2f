package dns

import (
	"context"
	"net/netip"

	"github.com/clusterd/clusterd/internal/hostos"
)

// refresh reads the host's resolvers and uses them if they are others than before.
func (s *Server) refresh(up *forwarder, own []netip.Addr) {
	servers, err := s.cfg.Upstreams()
	if err != nil {
		s.log.Debug("The host's resolvers cannot be read", "error", err)
		return
	}
	found := usable(servers, own, s.cfg.ServiceCIDRs)
	if up.set(found) {
		s.log.Info("DNS forwards other names to the host's resolvers", "resolvers", found)
	}
}

// follow refreshes when a file in ResolvConf changes, and now and then, until
// ctx ends.
func (s *Server) follow(ctx context.Context, up *forwarder, own []netip.Addr) {
	changes := hostos.FileChanges(ctx, s.cfg.ResolvConf)
	s.refresh(up, own) // what changed since the start
	for range changes {
		s.refresh(up, own)
	}
}
