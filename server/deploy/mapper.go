package deploy

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"
)

// known are the kinds that need no discovery, which takes longer than applying
// all addons does: version, kind and scope in each group.
var known = []struct {
	group, version string
	namespaced     []string
	root           []string
}{
	{"", "v1", []string{"ConfigMap", "Secret", "Service", "ServiceAccount", "Pod", "PersistentVolumeClaim", "LimitRange", "ResourceQuota"}, []string{"Namespace", "PersistentVolume"}},
	{"apps", "v1", []string{"Deployment", "DaemonSet", "StatefulSet"}, nil},
	{"batch", "v1", []string{"Job", "CronJob"}, nil},
	{"discovery.k8s.io", "v1", []string{"EndpointSlice"}, nil},
	{"networking.k8s.io", "v1", []string{"Ingress", "NetworkPolicy"}, []string{"IngressClass"}},
	{"policy", "v1", []string{"PodDisruptionBudget"}, nil},
	{"rbac.authorization.k8s.io", "v1", []string{"Role", "RoleBinding"}, []string{"ClusterRole", "ClusterRoleBinding"}},
	{"scheduling.k8s.io", "v1", nil, []string{"PriorityClass"}},
	{"storage.k8s.io", "v1", nil, []string{"StorageClass", "CSIDriver"}},
	{"apiextensions.k8s.io", "v1", nil, []string{"CustomResourceDefinition"}},
	{"apiregistration.k8s.io", "v1", nil, []string{"APIService"}},
}

// mapper finds the API of a kind, and asks the cluster only for kinds that it
// does not know by heart.
type mapper struct {
	static *meta.DefaultRESTMapper
	asking *restmapper.DeferredDiscoveryRESTMapper
}

func newMapper(client discovery.DiscoveryInterface) *mapper {
	m := &mapper{
		static: meta.NewDefaultRESTMapper(nil),
		asking: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client)),
	}
	for _, g := range known {
		gv := schema.GroupVersion{Group: g.group, Version: g.version}
		for _, kind := range g.namespaced {
			m.static.Add(gv.WithKind(kind), meta.RESTScopeNamespace)
		}
		for _, kind := range g.root {
			m.static.Add(gv.WithKind(kind), meta.RESTScopeRoot)
		}
	}
	return m
}

// mapping finds k in one of the versions, or in any when none is given.
func (m *mapper) mapping(k schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	if found, err := m.static.RESTMapping(k, versions...); err == nil {
		return found, nil
	}
	return m.asking.RESTMapping(k, versions...)
}

// forget makes the next unknown kind be asked for again.
func (m *mapper) forget() { m.asking.Reset() }
