//go:build e2e

package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clusterd/clusterd/internal/testkit/cluster"
)

// refused runs the role by way of the command before it, expects it to end by itself with the exit status and
// returns what it printed.
func refused(t *testing.T, c *cluster.Cluster, status int, before []string, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	p, err := c.Node.Start(&out, c.Env, append(append(before, c.Binary, c.Command()), args...)...)
	if err != nil {
		t.Fatal(err)
	}
	err = p.Wait(20 * time.Second)
	if got := cluster.ExitCode(err); got != status {
		_ = p.Kill()
		t.Errorf("exit status %d (%v), want %d; it printed:\n%s", got, err, status, out.String())
	}
	return out.String()
}

// wants checks that the text has each of the words.
func wants(t *testing.T, text string, words ...string) {
	t.Helper()
	missing := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return strings.Contains(text, w) })
	if len(missing) > 0 {
		t.Errorf("%q is not in:\n%s", missing, text)
	}
}

// TestRefused has everything that keeps a server from starting: it must say so in clear lines and change nothing.
func TestRefused(t *testing.T) {
	c := newCluster(t, "refused")
	t.Run("WrongFlags", func(t *testing.T) {
		out := refused(t, c, 2, nil, "--cluster-cidr=10.42.0.0/99", "--https-listen-port=70000", "--node-taint=broken",
			"--service-node-port-range=9-1", "--proxy-mode=telepathy", "--write-kubeconfig-mode=rw", "--log-format=xml",
			"--flannel-backend=ipsec")
		wants(t, out, "flannel-backend", "cluster-cidr", "https-listen-port", "node-taint", "service-node-port-range", "proxy-mode",
			"write-kubeconfig-mode", "log-format")
		empty(t, c)
	})
	t.Run("WrongDatastore", func(t *testing.T) {
		for _, row := range []struct{ args, wants []string }{
			{[]string{"--datastore-endpoint=oracle://u:hunter2@h/db"}, []string{"datastore-endpoint", "oracle://", "postgres://"}},
			{[]string{"--datastore-endpoint=postgres://u:hunter2@h:port/db"}, []string{"datastore-endpoint", "PostgreSQL"}},
			{[]string{"--datastore-endpoint=https://h:2379", "--datastore-cafile=/none"}, []string{"datastore-cafile", "/none"}},
			{[]string{"--datastore-cafile=" + c.Binary}, []string{"datastore-cafile", "no certificate"}},
		} {
			out := refused(t, c, 2, nil, row.args...)
			wants(t, out, row.wants...)
			if strings.Contains(out, "hunter2") || strings.Count(out, "\n") != 1 {
				t.Errorf("not one line without the password:\n%s", out)
			}
		}
		empty(t, c)
	})
	t.Run("UnknownFlag", func(t *testing.T) {
		wants(t, refused(t, c, 2, nil, "--no-such-flag"), "no-such-flag")
	})
	t.Run("UnknownKey", func(t *testing.T) {
		put(t, c, "/etc/clusterd/config.yaml", []byte("tls-sans: [a.example]\nhttps-listen-port: 70000\n"))
		defer os.Remove(c.Node.Path("/etc/clusterd/config.yaml"))
		wants(t, refused(t, c, 2, nil), "/etc/clusterd/config.yaml", "tls-sans", "tls-san", "70000")
		empty(t, c)
	})
	t.Run("UnknownVariable", func(t *testing.T) {
		out := refused(t, c, 2, []string{"env", "CLUSTERD_NODE_NMAE=a", "CLUSTERD_SERVICE_HOST=10.43.0.7"})
		wants(t, out, "CLUSTERD_NODE_NMAE", "CLUSTERD_NODE_NAME")
		if strings.Contains(out, "CLUSTERD_SERVICE_HOST") {
			t.Errorf("a Service's variable is taken for an option:\n%s", out)
		}
		empty(t, c)
	})
	t.Run("NotRoot", func(t *testing.T) {
		wants(t, refused(t, c, 1, []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}), "root")
		empty(t, c)
	})
	t.Run("NoCgroup", func(t *testing.T) {
		hide := []string{"unshare", "--mount", "sh", "-c", `umount -R /sys/fs/cgroup && exec "$@"`, "sh"}
		wants(t, refused(t, c, 1, hide), "cgroup")
		empty(t, c)
	})
	t.Run("FullDisk", func(t *testing.T) {
		if out, err := c.Node.Output(t.Context(), "sh", "-c", "mkdir /tmp/small && mount -t tmpfs -o size=64m tmpfs /tmp/small"); err != nil {
			t.Fatal(err, out)
		}
		wants(t, refused(t, c, 1, nil, "--data-dir=/tmp/small/data"), "/tmp/small", "free")
	})
	for _, row := range []struct{ name, address string }{{"APIPort", ":6443"}, {"KubeletPort", ":10250"}} {
		t.Run(row.name, func(t *testing.T) {
			l, err := c.Node.Network().Listen("tcp", row.address)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			wants(t, refused(t, c, 1, nil), row.address[1:])
		})
	}
}

// empty checks that a refused server has left nothing in its data directory but, at most, its lock.
func empty(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	found, err := os.ReadDir(c.Node.Path(dirs.Root()))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.Name() != filepath.Base(dirs.LockFile()) {
			t.Errorf("a refused server has made %s", f.Name())
		}
	}
}
