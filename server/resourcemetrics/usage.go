package resourcemetrics

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/metrics/pkg/apis/metrics"
)

const (
	// window is over how long a kubelet takes the rate of a CPU that is used: it looks at it every 10 to 20 seconds, and with
	// what is idle it takes up to a minute.
	window = 30 * time.Second
	// youngest is how long something has to have run for the rate since its start to mean anything, as in metrics-server.
	youngest = 10 * time.Second
)

// usage is what a node and its pods used.
type usage struct {
	node *figures // nil if not known
	pods map[types.UID]podUsage
}

// figures are of one moment; the CPU's is the mean over the window before it.
type figures struct {
	at     time.Time
	window time.Duration
	used   corev1.ResourceList
}

// podUsage is complete: it has all containers of the pod that run. at is the earliest of their moments, window the
// longest of their times.
type podUsage struct {
	at         time.Time
	window     time.Duration
	containers []metrics.ContainerMetrics
}

func newUsage(s *stats.Summary) *usage {
	u := &usage{pods: make(map[types.UID]podUsage, len(s.Pods))}
	if s.Node.CPU == nil || s.Node.CPU.UsageNanoCores == nil || *s.Node.CPU.UsageNanoCores == 0 {
		return u // the kubelet has looked at everything once only since it was started, and says that all rates are zero
	}
	// The node's StartTime is when something was last made in the root of the control groups.
	if f, ok := newFigures(metav1.Time{}, s.Node.CPU, s.Node.Memory); ok {
		u.node = &f
	}
	for _, p := range s.Pods {
		if pod, ok := newPodUsage(p.Containers); ok {
			u.pods[types.UID(p.PodRef.UID)] = pod
		}
	}
	return u
}

// newPodUsage is false if a container's figures are missing: the sum would tell the autoscaler to remove pods.
func newPodUsage(containers []stats.ContainerStats) (p podUsage, ok bool) {
	for _, c := range containers {
		f, ok := newFigures(c.StartTime, c.CPU, c.Memory)
		if !ok {
			return podUsage{}, false
		}
		p.containers = append(p.containers, metrics.ContainerMetrics{Name: c.Name, Usage: f.used})
		if p.at.IsZero() || f.at.Before(p.at) {
			p.at = f.at
		}
		p.window = max(p.window, f.window)
	}
	return p, len(p.containers) > 0
}

// newFigures is false if something is missing, which a kubelet has as nil or as zero.
func newFigures(start metav1.Time, cpu *stats.CPUStats, memory *stats.MemoryStats) (figures, bool) {
	if cpu == nil || cpu.UsageNanoCores == nil || cpu.UsageCoreNanoSeconds == nil || memory == nil || memory.WorkingSetBytes == nil {
		return figures{}, false
	}
	if *cpu.UsageCoreNanoSeconds == 0 || *memory.WorkingSetBytes == 0 {
		return figures{}, false
	}
	f := figures{at: cpu.Time.Time, window: window}
	rate := *cpu.UsageNanoCores
	age := f.at.Sub(start.Time)
	if age < youngest {
		return figures{}, false
	}
	if age < window { // the kubelet has looked at it once perhaps, and says that its rate is zero
		f.window = age
		rate = uint64(float64(*cpu.UsageCoreNanoSeconds) / age.Seconds())
	}
	f.used = corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(int64(rate), resource.Nano),
		corev1.ResourceMemory: *resource.NewQuantity(int64(*memory.WorkingSetBytes), resource.BinarySI),
	}
	return f, true
}
