// Package service speaks to the service manager that runs clusterd: systemd or OpenRC.
//
// It promises to touch the one service that it is given and no other, and that what is stopped or disabled already is no
// error.
package service

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// Service is one service of one manager. Its text is "systemd UNIT" or "openrc NAME".
type Service struct{ manager, name string }

// The managers.
const (
	systemd = "systemd"
	openrc  = "openrc"
)

// Parse reads the text of a service.
func Parse(text string) (Service, error) {
	manager, name, ok := strings.Cut(text, " ")
	if !ok || name == "" || strings.ContainsAny(name, " /") || strings.HasPrefix(name, "-") || manager != systemd && manager != openrc {
		return Service{}, fmt.Errorf("%q is no service: want systemd UNIT or openrc NAME", text)
	}
	return Service{manager, name}, nil
}

// String is what Parse reads.
func (s Service) String() string { return s.manager + " " + s.name }

// Stop stops it now.
func (s Service) Stop(ctx context.Context) error {
	if s.manager == openrc {
		return s.run(ctx, "rc-service", "--ifexists", "--ifstarted", s.name, "stop")
	}
	return s.run(ctx, "systemctl", "stop", s.name)
}

// Disable lets it not be started with the machine any more. Its files belong to the caller, who removes them after this
// and calls Forget.
func (s Service) Disable(ctx context.Context) error {
	if s.manager == openrc {
		_ = s.run(ctx, "rc-update", "--all", "delete", s.name) // it fails when the service is in no runlevel
		return nil
	}
	return s.run(ctx, "systemctl", "disable", "--quiet", s.name)
}

// Forget makes the manager see that the files have gone.
func (s Service) Forget(ctx context.Context) error {
	if s.manager == openrc {
		return nil
	}
	if err := s.run(ctx, "systemctl", "daemon-reload"); err != nil {
		return err
	}
	_ = s.run(ctx, "systemctl", "reset-failed", s.name) // it fails when there is nothing to forget
	return nil
}

func (s Service) run(ctx context.Context, command string, args ...string) error {
	if out, err := exec.CommandContext(ctx, command, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", command, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
