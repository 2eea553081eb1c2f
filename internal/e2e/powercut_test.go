//go:build e2e

package e2e

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clusterd/clusterd/internal/testkit/cluster"
	"github.com/clusterd/clusterd/internal/testkit/image"
)

// TestPowerCut ends everything on two machines at once, damages what such an end may damage, and wants both back as they
// were, without anybody's help.
func TestPowerCut(t *testing.T) {
	c := newCluster(t, "ka")
	put(t, c, dirs.Images()+"/tools.tar", image.Bytes(t, tools))
	s := start(t, c)
	j := &joined{suite: s, agent: newAgent(t, s, "kb", "--token", s.nodeToken(t))}
	j.startAgent(t)
	near := newPod("near", idle())
	near.Spec.NodeName = s.Node.Name()
	j.runs(t, near)
	j.runs(t, j.on(newPod("far", idle())))
	j.agent.Args = nil
	for _, round := range []struct {
		name   string
		damage func(path string) bool
	}{
		{"Processes", nil}, // the kernel goes on, with what they had in it
		{"Metadata", func(path string) bool { return filepath.Base(path) == "meta.db" }},
		{"Content", func(path string) bool { return strings.Contains(path, "/blobs/") || filepath.Base(path) == "status" }},
		{"Snapshots", func(path string) bool { return filepath.Base(path) == "metadata.db" }},
		{"Everything", func(string) bool { return true }},
	} {
		t.Run(round.name, func(t *testing.T) {
			token := j.nodeToken(t)
			for _, m := range []*cluster.Cluster{j.Cluster, j.agent} {
				endAll(t, m)
				if round.damage == nil {
					continue
				}
				reboot(t, m)
				for _, path := range emptied(t, m, round.damage) {
					t.Logf("emptied on %s: %s", m.Node.Name(), path)
				}
			}
			j.start(t)
			j.startAgent(t)
			for _, pod := range []string{"near", "far"} {
				j.tries(t, pod, contains(pod), "hostname")
			}
			if j.nodeToken(t) != token {
				t.Error("the cluster has another token or authority")
			}
		})
	}
	for _, m := range []*cluster.Cluster{j.Cluster, j.agent} { // each was told
		wants(t, m.Log(), "containerd's records were damaged", "content of images was empty", "record of the kubelet was empty", "second copy")
	}
	wants(t, j.agent.Log(), "a certificate is missing or damaged")
}

// endAll ends everything on a machine but its first process: clusterd, shims and containers.
func endAll(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	_, _ = c.Node.Output(t.Context(), "sh", "-c", "kill -9 -1") // itself, too
	if err := c.Server().Wait(stopTimeout); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
}

// reboot removes what is gone after one.
func reboot(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	script := `
awk '$2 ~ "^/run/|^/var/lib/clusterd/" {print $2}' /proc/mounts | sort -r | xargs -r umount -l
rm -rf /run/*
for l in $(ip -o link | awk -F': ' '/clusterd|pod/ {sub("@.*", "", $2); print $2}'); do ip link del "$l" 2>/dev/null; done
nft flush ruleset
true`
	if out, err := c.Node.Output(t.Context(), "sh", "-c", script); err != nil {
		t.Fatal(err, out)
	}
}

// emptied truncates the files in which the node keeps its state, and returns them.
func emptied(t *testing.T, c *cluster.Cluster, which func(path string) bool) (all []string) {
	t.Helper()
	root := c.Node.Path(dirs.Root())
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch name := d.Name(); {
		case d.IsDir() && (name == "snapshots" || name == "images" || name == "volumes"): // what containers and users have written
			return filepath.SkipDir
		case d.IsDir() && (name == "db" || name == "copies"): // the cluster itself, and one of the two of what cannot be made again
			return filepath.SkipDir
		case !d.Type().IsRegular() || !which(path):
			return nil
		}
		all = append(all, strings.TrimPrefix(path, root))
		return os.Truncate(path, 0)
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
