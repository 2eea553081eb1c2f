package resourcemetrics

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"
)

var at = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// containerStats are of a container that was started so long before.
func containerStats(age time.Duration, rate, total uint64) stats.ContainerStats {
	return stats.ContainerStats{
		Name:      "c",
		StartTime: metav1.NewTime(at.Add(-age)),
		CPU:       &stats.CPUStats{Time: metav1.NewTime(at), UsageNanoCores: &rate, UsageCoreNanoSeconds: &total},
		Memory:    &stats.MemoryStats{WorkingSetBytes: ptr.To[uint64](3 << 20)},
	}
}

func TestPodUsage(t *testing.T) {
	old, young, newborn := containerStats(time.Hour, 5e6, 9e12), containerStats(20*time.Second, 0, 2e9), containerStats(time.Second, 0, 1e9)
	noMemory, noCPU := containerStats(time.Hour, 5e6, 9e12), containerStats(time.Hour, 5e6, 9e12)
	noMemory.Memory, noCPU.CPU.UsageNanoCores = nil, nil
	for name, row := range map[string]struct {
		containers []stats.ContainerStats
		cpu        string // of all containers; "" is no usage
		window     time.Duration
	}{
		"old":          {[]stats.ContainerStats{old}, "5m", window},
		"young":        {[]stats.ContainerStats{young}, "100m", 20 * time.Second},
		"both":         {[]stats.ContainerStats{old, young}, "105m", window},
		"newborn":      {containers: []stats.ContainerStats{newborn}},
		"one too new":  {containers: []stats.ContainerStats{old, newborn}},
		"no memory":    {containers: []stats.ContainerStats{old, noMemory}},
		"no rate":      {containers: []stats.ContainerStats{noCPU}},
		"no container": {},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUsage(&stats.Summary{Node: stats.NodeStats{CPU: old.CPU, Memory: old.Memory}, Pods: []stats.PodStats{{PodRef: stats.PodReference{Name: "p", Namespace: "ns", UID: "1-2"}, Containers: row.containers}}})
			p, ok := u.pods["1-2"]
			if ok != (row.cpu != "") {
				t.Fatalf("usage of the pod: %t", ok)
			}
			if !ok {
				return
			}
			sum := p.containers[0].Usage.Cpu().DeepCopy()
			for _, c := range p.containers[1:] {
				sum.Add(*c.Usage.Cpu())
			}
			if sum.String() != row.cpu || p.window != row.window || !p.at.Equal(at) {
				t.Errorf("CPU %s over %s at %s, want %s over %s at %s", sum.String(), p.window, p.at, row.cpu, row.window, at)
			}
			if m := p.containers[0].Usage.Memory().String(); m != "3Mi" {
				t.Errorf("memory %s", m)
			}
		})
	}
	if u := newUsage(&stats.Summary{}); u.node != nil {
		t.Errorf("a node without figures uses %v", u.node)
	}
}

// TestNodeUsage has a node in whose root control group something was made a moment ago, and a kubelet that was just started.
func TestNodeUsage(t *testing.T) {
	c := containerStats(20*time.Second, 5e6, 9e12)
	s := stats.Summary{
		Node: stats.NodeStats{StartTime: c.StartTime, CPU: c.CPU, Memory: c.Memory},
		Pods: []stats.PodStats{{Containers: []stats.ContainerStats{containerStats(time.Hour, 0, 9e12)}}},
	}
	u := newUsage(&s)
	if u.node == nil || u.node.used.Cpu().String() != "5m" || len(u.pods) != 1 {
		t.Errorf("the node uses %v, and there are %d pods; want 5m and 1", u.node, len(u.pods))
	}
	s.Node.CPU.UsageNanoCores = ptr.To[uint64](0)
	if u := newUsage(&s); u.node != nil || len(u.pods) != 0 {
		t.Errorf("before the kubelet's second look the node uses %v, and there are %d pods", u.node, len(u.pods))
	}
}
