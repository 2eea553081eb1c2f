// Package resourcemetrics serves metrics.k8s.io, which `kubectl top` and the horizontal pod autoscaler read: what CPU and
// memory nodes and pods use.
//
// It promises: figures that the nodes' kubelets have when somebody asks, reached the way that logs are, so that nodes behind
// NAT are in it; no request while nobody asks; one request to a kubelet in a while, however many ask; and an answer
// without the nodes that do not reply in time.
package resourcemetrics

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/metrics/pkg/apis/metrics"
	"k8s.io/metrics/pkg/apis/metrics/install"
	metricsv1 "k8s.io/metrics/pkg/apis/metrics/v1"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// Scheme has the types of the group.
var Scheme = newScheme()

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	install.Install(s)
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	return s
}

// Kubelet is where a node's kubelet is asked.
type Kubelet struct {
	URL       url.URL // without path
	Transport http.RoundTripper
}

// Find finds the kubelet of a node.
type Find func(ctx context.Context, node string) (Kubelet, error)

// Install adds the group to an API server that is not prepared yet. client reads nodes and pods.
func Install(server *genericapiserver.GenericAPIServer, client clientset.Interface, find Find, log *slog.Logger) error {
	info := genericapiserver.NewDefaultAPIGroupInfo(metrics.GroupName, Scheme, metav1.ParameterCodec, serializer.NewCodecFactory(Scheme))
	r := &reader{find: find, log: log, nodes: map[string]*node{}}
	resources := map[string]rest.Storage{}
	for name, s := range map[string]readable{
		"nodes": &nodeMetrics{storage{client, r, "NodeMetrics", false}},
		"pods":  &podMetrics{storage{client, r, "PodMetrics", true}},
	} {
		resources[name] = s
	}
	for _, version := range []string{metricsv1.SchemeGroupVersion.Version, v1beta1.SchemeGroupVersion.Version} {
		info.VersionedResourcesStorageMap[version] = resources
	}
	if err := server.InstallAPIGroup(&info); err != nil {
		return fmt.Errorf("install %s: %w", metrics.GroupName, err)
	}
	return nil
}
