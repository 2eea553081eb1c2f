//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterd/clusterd/internal/testkit/cluster"
	"github.com/clusterd/clusterd/internal/testkit/image"
)

// state prints what a machine is made of, a line for each thing: what a lab node has of its own, and the places where
// parts of Kubernetes are known to leave something. Names that the kernel counts up and times are left out.
const state = `
ip -o link | sed -E 's/^[0-9]+: //; s/@if[0-9]+//; s/^/link /'
ip -o addr | sed -E 's/^[0-9]+: //; s/valid_lft.*//; s/^/address /'
ip route show table all | sed 's/^/route /'
ip -6 route show table all | sed 's/^/route6 /'
nft list ruleset | sed -E 's/counter packets [0-9]+ bytes [0-9]+/counter/; s/^/rules /'
cut -d' ' -f5- /proc/self/mountinfo | sed -E 's/(shared|master|propagate_from):[0-9]+ ?//g; s/^/mount /' | sort
find /sys/fs/cgroup -type d | sed 's/^/cgroup /' | sort
find /run /tmp /var/log /etc/clusterd /etc/cni /etc/containerd /etc/kubernetes /var/lib/clusterd /var/lib/kubelet \
	/var/lib/cni /var/lib/containerd /opt/cni /opt/containerd /usr/libexec/kubernetes -printf 'file %y %m %p %l\n' 2>/dev/null | sort
ps -eo args= | grep -v '<defunct>' | grep -vE '^(ps|sed|sort|grep|find|cut|sh|bash|nft|ip) ?' | sort | sed 's/^/process /'
`

func machineState(t *testing.T, c *cluster.Cluster) []string {
	t.Helper()
	out, err := c.Node.Command(within(t, podTimeout), "bash", "-c", state).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	for _, kind := range []string{"link ", "route ", "mount ", "cgroup ", "file ", "process "} {
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, kind) }) {
			t.Fatalf("no %sin the state of the machine: %s", kind, out)
		}
	}
	return lines
}

// sameState compares the machine with an earlier look at it.
func sameState(t *testing.T, c *cluster.Cluster, before []string) {
	t.Helper()
	compare(t, before, machineState(t, c))
}

// compare names what differs between two looks.
func compare(t *testing.T, before, after []string) {
	t.Helper()
	for _, line := range after {
		if !slices.Contains(before, line) {
			t.Errorf("left: %s", line)
		}
	}
	for _, line := range before {
		if !slices.Contains(after, line) {
			t.Errorf("gone: %s", line)
		}
	}
}

// settled waits until the kernel has made up its mind about the node's own address.
func settled(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		return // a kernel without IPv6
	}
	eventually(t, podTimeout, func(ctx context.Context) string {
		out, err := c.Node.Output(ctx, "ip", "-6", "addr", "show", "dev", "eth0")
		if err != nil || strings.Contains(out, "tentative") || !strings.Contains(out, "fe80") {
			return fmt.Sprintf("the addresses: %s, %v", out, err)
		}
		return ""
	})
}

// foreign makes what belongs to others: links, rules that look like those of clusterd, files in directories that it uses, a
// mount, and a kernel that has forwarded already.
const foreign = `
set -e
ip link add podfff type bridge
ip link add clusterd1 type bridge
ip route add 192.0.2.0/24 dev eth0
nft add table ip mine
nft add chain ip mine KUBE-NOT '{ type filter hook forward priority 5; }'
nft add rule ip mine KUBE-NOT iifname clusterd0 counter accept
iptables -N MINE
iptables -A MINE -i clusterd1 -m comment --comment "not -j KUBE-ANY" -j ACCEPT
iptables -A FORWARD -j MINE
iptables -P FORWARD DROP
mkdir -p /var/log/containers /var/log/pods/mine /var/lib/cni/results /run/netns
echo mine | tee /var/log/containers/mine.log /var/log/pods/mine/0.log /var/lib/cni/results/mine-1 /etc/clusterd/mine.yaml >/dev/null
mkdir -p /var/lib/clusterd/agent/disk
mount -t tmpfs -o mode=700 disk /var/lib/clusterd/agent/disk
echo mine >/var/lib/clusterd/agent/disk/file
for d in /sys/fs/cgroup /sys/fs/cgroup/*/; do if [ -f "$d/cgroup.procs" ]; then mkdir "$d/mine"; fi; done
`

// TestUninstall runs all ways in which a node leaves its marks, twice: on a machine without anything, and on one where
// others have things of the same kind.
func TestUninstall(t *testing.T) {
	for _, row := range []struct{ name, before, mode string }{
		{"removed", "", "nftables"},
		{"beside", foreign, "iptables"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newCluster(t, row.name, "--proxy-mode", row.mode)
			put(t, c, "/etc/clusterd/config.yaml", []byte("node-label: [a=b]\n"))
			if _, err := c.Node.Output(t.Context(), "bash", "-c", row.before); err != nil {
				t.Fatal(err)
			}
			put(t, c, "/var/log/clusterd.log", nil) // the test's log of the server
			settled(t, c)
			before := machineState(t, c)
			put(t, c, dirs.Images()+"/tools.tar", image.Bytes(t, tools))
			s := start(t, c)
			if _, err := s.client.CoreV1().Nodes().Create(t.Context(), far("vxlan"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			s.testStopPods(t)
			s.wantTunnel(t, "before the end", "1450", []string{"dev clusterd-vx"})
			uninstall(t, c)
			sameState(t, c, before)
			_, err := c.Clusterd(within(t, podTimeout), nil, "uninstall")
			wants(t, fmt.Sprint(err), "there is no clusterd in /var/lib/clusterd", "--data-dir")
		})
	}
}

// TestUninstallNode removes clusterd from a machine that has joined another one's cluster, with a pod that runs.
func TestUninstallNode(t *testing.T) {
	s := start(t, newCluster(t, "us"))
	agent := newCluster(t, "ua", "--join", s.url(), "--token", s.nodeToken(t))
	agent.Role = "agent"
	put(t, agent, "/etc/clusterd/config.yaml", []byte("node-label: [a=b]\n"))
	put(t, agent, "/var/log/clusterd.log", nil) // the test's log of the agent
	settled(t, agent)
	before := machineState(t, agent)
	put(t, agent, dirs.Images()+"/tools.tar", image.Bytes(t, tools))
	j := &joined{suite: s, agent: agent}
	j.startAgent(t)
	s.runs(t, j.on(s.podWithEverything()))
	uninstall(t, agent)
	sameState(t, agent, before)
}

// uninstall removes clusterd while it runs, with its pods.
func uninstall(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	out, err := c.Clusterd(within(t, podTimeout), nil, "uninstall", "--grace", "2s")
	if err != nil {
		t.Fatal(err)
	}
	wants(t, out, "told process", "stopped the pods", "removed clusterd")
	if err := c.Server().Wait(stopTimeout); err != nil {
		t.Errorf("clusterd ended with %v", err)
	}
}

// testStopPods runs pods, one of which does not end by itself, stops them with the server, and starts it again.
func (s *suite) testStopPods(t *testing.T) {
	s.runs(t, s.podWithEverything())
	if out, err := s.Clusterd(within(t, podTimeout), nil, "ready"); err != nil {
		t.Errorf("clusterd ready: %s, %v", out, err)
	}
	out, err := s.Clusterd(within(t, podTimeout), nil, "stop")
	if err != nil {
		t.Fatal(err)
	}
	wants(t, out, "told process")
	if left := s.processes(t, "stubborn"); left == 0 {
		t.Error("the pod ended with the server")
	}
	if _, err := s.Clusterd(within(t, podTimeout), nil, "ready", "--timeout", "1s"); err == nil {
		t.Error("a stopped node is Ready")
	}
	s.start(t)
	s.pod(t, "everything", isReady)
	if _, err := s.Clusterd(within(t, podTimeout), nil, "stop", "--pods", "--grace", "1s"); err != nil {
		t.Fatal(err)
	}
	if left := s.processes(t, "stubborn|shim"); left > 0 {
		t.Errorf("%d processes of pods are left", left)
	}
	s.start(t)
	s.pod(t, "everything", func(p *corev1.Pod) string {
		if len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].RestartCount == 0 {
			return "was not started again"
		}
		return isReady(p)
	})
}

// processes counts those in the node whose command line matches.
func (s *suite) processes(t *testing.T, pattern string) int {
	t.Helper()
	out, err := s.Node.Command(within(t, podTimeout), "ps", "-eo", "args=").Output()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "<defunct>") {
			continue // the lab's first process takes no notice of those that have ended
		}
		for word := range strings.SplitSeq(pattern, "|") {
			if strings.Contains(line, word) {
				n++
				break
			}
		}
	}
	return n
}

// podWithEverything has volumes, a hostPort and a process that takes no signal but the last.
func (s *suite) podWithEverything() *corev1.Pod {
	c := container("c", "sh", "-c", "trap '' TERM; : stubborn; while :; do sleep 1; done")
	c.Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080}}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "memory", MountPath: "/memory"}}
	pod := newPod("everything", c)
	pod.Spec.Volumes = []corev1.Volume{{Name: "memory", VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory},
	}}}
	return pod
}
