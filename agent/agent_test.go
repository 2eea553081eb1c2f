package agent

import (
	"testing"

	"github.com/clusterd/clusterd/internal/hostos"
)

// TestSnapshotter: where the host has no overlayfs the user is told once, by the look at the host, and the runtime does not
// look again.
func TestSnapshotter(t *testing.T) {
	for _, row := range []struct {
		configured string
		overlay    bool
		want       string
	}{
		{"", true, ""},
		{"", false, "native"},
		{"overlayfs", false, "overlayfs"},
		{"native", true, "native"},
	} {
		a := &Agent{cfg: Config{Snapshotter: row.configured}, d: Deps{Host: hostos.Host{Overlay: row.overlay}}}
		if got := a.snapshotter(); got != row.want {
			t.Errorf("configured %q, overlayfs works %t: %q, want %q", row.configured, row.overlay, got, row.want)
		}
	}
}
