package datadir_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/clusterd/clusterd/internal/datadir"
)

func open(t *testing.T, root string) datadir.Dir {
	t.Helper()
	d, err := datadir.New(root)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// paths calls every method of Dir that returns a path, by name.
func paths(d datadir.Dir) map[string]string {
	all := map[string]string{}
	v := reflect.ValueOf(d)
	for i := range v.NumMethod() {
		if f, ok := v.Method(i).Interface().(func() string); ok {
			all[v.Type().Method(i).Name] = f()
		}
	}
	return all
}

func TestDefaultPaths(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"Root":             "/var/lib/clusterd",
		"RunDir":           "/run/clusterd",
		"LockFile":         "/var/lib/clusterd/lock",
		"Ledger":           "/var/lib/clusterd/ledger",
		"ReadyFile":        "/run/clusterd/ready",
		"Payload":          "/var/lib/clusterd/data",
		"ServerTLS":        "/var/lib/clusterd/server/tls",
		"DB":               "/var/lib/clusterd/server/db/state.db",
		"DBVersion":        "/var/lib/clusterd/server/db/version",
		"Snapshots":        "/var/lib/clusterd/server/db/snapshots",
		"SnapshotSocket":   "/run/clusterd/server/snapshot.sock",
		"Unpacked":         "/var/lib/clusterd/server/restore.part",
		"Restored":         "/var/lib/clusterd/server/restore",
		"ServerToken":      "/var/lib/clusterd/server/token",
		"ServerJoinToken":  "/var/lib/clusterd/server/server-token",
		"NodeToken":        "/var/lib/clusterd/server/node-token",
		"Joined":           "/var/lib/clusterd/agent/cluster.json",
		"NodeName":         "/var/lib/clusterd/agent/node-name",
		"Manifests":        "/var/lib/clusterd/server/manifests",
		"AgentTLS":         "/var/lib/clusterd/agent/tls",
		"WireGuardKey":     "/var/lib/clusterd/agent/tls/wireguard.key",
		"KubeletCerts":     "/var/lib/clusterd/agent/tls/kubelet",
		"KubeletRoot":      "/var/lib/clusterd/agent/kubelet",
		"ProxyKubeconfig":  "/var/lib/clusterd/agent/tls/kube-proxy.yaml",
		"VolumePlugins":    "/var/lib/clusterd/agent/volume-plugins",
		"PodManifests":     "/var/lib/clusterd/agent/pod-manifests",
		"PodLogs":          "/var/log/pods",
		"ContainerdRoot":   "/var/lib/clusterd/agent/containerd",
		"ContainerdState":  "/run/clusterd/containerd",
		"ContainerdSocket": "/run/clusterd/containerd/containerd.sock",
		"PodNetNS":         "/run/clusterd/containerd/io.containerd.grpc.v1.cri/netns",
		"Images":           "/var/lib/clusterd/agent/images",
		"ResolvConf":       "/run/clusterd/resolv.conf",
		"CNIConf":          "/var/lib/clusterd/agent/cni",
		"AgentCopies":      "/var/lib/clusterd/agent/tls/copies",
		"ServerCopies":     "/var/lib/clusterd/server/tls/copies",
		"CNISocket":        "/run/clusterd/cni.sock",
		"NetworkState":     "/var/lib/clusterd/agent/network",
	}
	got := paths(open(t, datadir.DefaultRoot))
	for name, path := range got {
		if path != want[name] {
			t.Errorf("%s is %s, want %q", name, path, want[name])
		}
	}
	if len(got) != len(want) {
		t.Errorf("Dir has %d paths, want %d", len(got), len(want))
	}
}

func TestInstancesShareNothing(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, root := range []string{datadir.DefaultRoot, "/srv/a", "/srv/b"} {
		for name, path := range paths(open(t, root)) {
			if other, taken := seen[path]; taken {
				t.Errorf("%s of %s is also %s", name, root, other)
			}
			seen[path] = name + " of " + root
		}
	}
}

// TestSocketsFit uses a root longer than a unix socket's path may be.
func TestSocketsFit(t *testing.T) {
	t.Parallel()
	d := open(t, "/"+strings.Repeat("long/", 40))
	for _, path := range []string{d.ContainerdSocket(), d.CNISocket(), d.SnapshotSocket()} {
		if len(path) > 107 {
			t.Errorf("%s has %d bytes", path, len(path))
		}
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for root, want := range map[string]string{
		"/srv/x/":             "/srv/x",
		"x":                   filepath.Join(wd, "x"),
		"/var/lib/clusterd//": datadir.DefaultRoot,
	} {
		if got := open(t, root).Root(); got != want {
			t.Errorf("New(%q) is %s, want %s", root, got, want)
		}
	}
	if _, err := datadir.New(""); err == nil {
		t.Error("no error for an empty root")
	}
}

func TestPrepare(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "deep", "root")
	d := open(t, root)
	t.Cleanup(func() { os.RemoveAll(d.RunDir()) })
	for _, dir := range []string{d.ServerTLS(), d.Manifests()} { // there before, and too open
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := d.PrepareServer(); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{
		d.Root(), d.RunDir(), d.Payload(), d.Images(), d.CNIConf(), d.NetworkState(), d.PodLogs(),
		d.KubeletRoot(), d.ContainerdRoot(), d.ContainerdState(),
	} {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			t.Errorf("%s: not a directory (%v)", dir, err)
		}
	}
	for _, dir := range []string{
		d.ServerTLS(), d.AgentTLS(), d.Manifests(), d.PodManifests(), d.KubeletCerts(),
		filepath.Dir(d.DB()), filepath.Dir(d.ServerToken()), filepath.Dir(d.SnapshotSocket()),
	} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: not a closed directory (%v)", dir, err)
		}
	}
}

// Whether a missing directory of manifests means that all of them are gone is not Prepare's to decide, nor what else is
// wrong with it.
func TestPrepareLeavesManifests(t *testing.T) {
	t.Parallel()
	d := open(t, t.TempDir())
	t.Cleanup(func() { os.RemoveAll(d.RunDir()) })
	if err := d.PrepareServer(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(d.Manifests()); !os.IsNotExist(err) {
		t.Errorf("%s is there: %v", d.Manifests(), err)
	}
	if err := os.WriteFile(d.Manifests(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.PrepareServer(); err != nil {
		t.Error(err)
	}
}

func TestHolder(t *testing.T) {
	t.Parallel()
	d := open(t, t.TempDir())
	want := func(want int) {
		t.Helper()
		if pid, err := d.Holder(); pid != want || err != nil {
			t.Errorf("the holder is %d, %v; want %d", pid, err, want)
		}
	}
	want(0)
	release, err := d.Lock()
	if err != nil {
		t.Fatal(err)
	}
	want(os.Getpid())
	if err := release(); err != nil {
		t.Fatal(err)
	}
	want(0)
}

func TestPrepareNamesWhatIsInTheWay(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	d := open(t, root)
	t.Cleanup(func() { os.RemoveAll(d.RunDir()) })
	if err := os.WriteFile(filepath.Join(root, "server"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.PrepareServer(); err == nil || !strings.Contains(err.Error(), filepath.Join(root, "server")) {
		t.Errorf("got %v, want an error that names the file", err)
	}
}
