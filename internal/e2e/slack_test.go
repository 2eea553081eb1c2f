//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/clusterd/clusterd/internal/testkit/image"
)

// TestTimerSlack waits until the server sleeps longer because it has nothing to do, and starts a pod then: its programs must
// not sleep longer, neither the first one nor one that is started in it later.
func TestTimerSlack(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "ts")
	put(t, c, dirs.Images()+"/tools.tar", image.Bytes(t, tools))
	s := start(t, c)
	eventually(t, 3*time.Minute, func(context.Context) string {
		slack, err := os.ReadFile(fmt.Sprintf("/proc/%d/timerslack_ns", s.Server().PID()))
		if err != nil {
			return err.Error()
		}
		if string(slack) != "10000000\n" {
			return "the server's slack is " + string(slack)
		}
		return ""
	})
	s.runs(t, newPod("slack", container("c", "sh", "-c", "cat /proc/self/timerslack_ns; exec sleep infinity")))
	for _, way := range [][]string{{"logs", "slack"}, {"exec", "slack", "--", "cat", "/proc/self/timerslack_ns"}} {
		if out := s.kubectl(t, way...); out != "50000\n" {
			t.Errorf("by %s: the slack in a pod is %q", way[0], out)
		}
	}
}
