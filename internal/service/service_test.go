package service_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clusterd/clusterd/internal/service"
)

func TestParse(t *testing.T) {
	for _, text := range []string{"", "systemd", "systemd ", "upstart clusterd", "systemd a b", "systemd ../a", "openrc --all"} {
		if s, err := service.Parse(text); err == nil {
			t.Errorf("%q was read as %v", text, s)
		}
	}
}

// TestCommands has programs in the path that note how they were called.
func TestCommands(t *testing.T) {
	dir := t.TempDir()
	calls := filepath.Join(dir, "calls")
	script := "#!/bin/sh\necho \"${0##*/} $*\" >>" + calls + "\n"
	for _, name := range []string{"systemctl", "rc-service", "rc-update"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	for _, row := range []struct{ service, want string }{
		{"systemd clusterd.service", "systemctl stop clusterd.service\nsystemctl disable --quiet clusterd.service\n" +
			"systemctl daemon-reload\nsystemctl reset-failed clusterd.service\n"},
		{"openrc clusterd", "rc-service --ifexists --ifstarted clusterd stop\nrc-update --all delete clusterd\n"},
	} {
		_ = os.Remove(calls)
		s, err := service.Parse(row.service)
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{s.Stop(t.Context()), s.Disable(t.Context()), s.Forget(t.Context())} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(calls); err != nil || string(got) != row.want {
			t.Errorf("%s: called %q, %v; want %q", s, got, err, row.want)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte("#!/bin/sh\necho no such unit\nexit 5\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	s, _ := service.Parse("systemd x.service")
	if err := s.Stop(t.Context()); err == nil || !strings.Contains(err.Error(), "no such unit") {
		t.Errorf("a refusal gave %v", err)
	}
}
