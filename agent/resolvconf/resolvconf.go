// Package resolvconf keeps a file with the host's real resolvers for the kubelet, which reads it for each pod that uses the
// host's (dnsPolicy Default).
//
// Why not the host's own file: which one names the real resolvers can change, or there is none yet after a start without a
// network, and the kubelet takes the name of a file once. In the host's there may also be servers on loopback addresses,
// which a pod cannot reach.
package resolvconf

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/clusterd/clusterd/internal/atomicfile"
	"github.com/clusterd/clusterd/internal/hostos"
)

// nobody is what a host without resolvers has: the pod asks itself, and is told at once that nobody answers. Without any
// server the container runtime would give the pod the host's file.
const nobody = "nameserver 127.0.0.1\n"

// Keep writes the file and keeps it up to date until ctx ends. It returns when the file is written for the first time. from
// is the file with the host's resolvers; empty: wherever the host has them.
func Keep(ctx context.Context, file, from string, log *slog.Logger) error {
	changes := hostos.FileChanges(ctx, hostos.ResolvConfs(from))
	if err := write(file, from, log); err != nil {
		return err
	}
	go func() {
		for range changes {
			if err := write(file, from, log); err != nil && ctx.Err() == nil {
				log.Warn("pods get the former resolvers of the host", "error", err)
			}
		}
	}()
	return nil
}

// write brings the file up to date; it does nothing when it is.
func write(file, from string, log *slog.Logger) error {
	r, err := hostos.Upstreams(from)
	if err != nil {
		log.Debug("the host's resolvers cannot be read", "error", err)
	}
	text := r.Conf
	if text == "" {
		text = nobody
	}
	if old, err := os.ReadFile(file); err == nil && string(old) == text {
		return nil
	}
	if err := atomicfile.Write(file, 0o644, []byte(text)); err != nil {
		return fmt.Errorf("keep the host's resolvers for pods: %w", err)
	}
	return nil
}
