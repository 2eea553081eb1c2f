package dns

import (
	"context"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// recheckInterval is how often the host's resolvers are read without a sign
	// of change: some live in files that did not exist at the start.
	recheckInterval = 5 * time.Minute
	// settle is how long a changed file is left alone, to be written completely.
	settle = 200 * time.Millisecond
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
	changes, stop := watchFiles(s.cfg.ResolvConf)
	defer stop()
	recheck := time.NewTicker(recheckInterval)
	defer recheck.Stop()
	var settled <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-changes:
			settled = time.After(settle)
		case <-settled:
			settled = nil
			s.refresh(up, own)
		case <-recheck.C:
			s.refresh(up, own)
		}
	}
}

// watchFiles reports changes in the folders of the files and of what they link
// to: resolv.conf is usually replaced, not written. Without inotify it reports
// nothing, which leaves the recheck.
func watchFiles(files []string) (<-chan fsnotify.Event, func()) {
	if len(files) == 0 {
		return nil, func() {}
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, func() {}
	}
	for _, f := range files {
		_ = w.Add(filepath.Dir(f))
		if target, err := filepath.EvalSymlinks(f); err == nil {
			_ = w.Add(filepath.Dir(target))
		}
	}
	return w.Events, func() { _ = w.Close() }
}
