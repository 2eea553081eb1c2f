package kubelet

import (
	"context"
	"fmt"
	"reflect"
	"time"
	"unsafe"

	"github.com/google/cadvisor/lib/manager"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/kubelet/cadvisor"
	"k8s.io/kubernetes/pkg/kubelet/cm"
)

// idleStats is how long cAdvisor leaves a cgroup alone in which nothing has happened since it looked last; one that is at work
// is looked at every 10 seconds, as upstream. Upstream's 15 seconds for the others are a third of what a node with many idle
// pods has to do.
const idleStats = 30 * time.Second

// newStats makes cAdvisor as the kubelet would, and has it rest longer. It is nil where the kubelet shall decide how much of
// cAdvisor it needs, which it does when the statistics are the container runtime's.
func newStats(ctx context.Context, s *options.KubeletServer) (cadvisor.Interface, error) {
	if utilfeature.DefaultFeatureGate.Enabled(features.PodAndContainerStatsFromCRI) {
		return nil, nil
	}
	log := klog.FromContext(ctx)
	roots := []string{cm.NodeAllocatableRoot(s.CgroupRoot, s.CgroupsPerQOS, s.CgroupDriver)}
	if own, err := cm.GetKubeletContainer(log, s.KubeletCgroups); err == nil && own != "" {
		roots = append(roots, own)
	}
	for _, more := range []string{s.RuntimeCgroups, s.SystemCgroups} {
		if more != "" {
			roots = append(roots, more)
		}
	}
	endpoint := s.ContainerRuntimeEndpoint
	c, err := cadvisor.New(log, cadvisor.NewImageFsInfoProvider(endpoint), s.RootDirectory, roots,
		cadvisor.UsingLegacyCadvisorStats(endpoint), s.LocalStorageCapacityIsolation, false)
	if err != nil {
		return nil, fmt.Errorf("make cAdvisor: %w", err)
	}
	if limit := longestRest(c); limit != nil {
		*limit = max(*limit, idleStats, *manager.HousekeepingInterval)
	}
	return c, nil
}

// longestRest is where cAdvisor keeps the longest time between two looks at a cgroup, which the kubelet has as a constant; nil
// when it is not where it was.
func longestRest(c cadvisor.Interface) *time.Duration {
	field := reflect.Indirect(reflect.ValueOf(c))
	for _, name := range []string{"Manager", "maxHousekeepingInterval"} {
		if field.Kind() == reflect.Interface {
			field = reflect.Indirect(field.Elem())
		}
		if field.Kind() != reflect.Struct {
			return nil
		}
		if field = field.FieldByName(name); !field.IsValid() {
			return nil
		}
	}
	if field.Type() != reflect.TypeFor[time.Duration]() {
		return nil
	}
	return (*time.Duration)(unsafe.Pointer(field.UnsafeAddr()))
}
