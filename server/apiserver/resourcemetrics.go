package apiserver

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	genericapiserver "k8s.io/apiserver/pkg/server"
	clientset "k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"

	"github.com/clusterd/clusterd/internal/inproc"
	"github.com/clusterd/clusterd/server/resourcemetrics"
)

// addResourceMetrics puts metrics.k8s.io beside the core API, behind the aggregator: an APIService that names a Service is
// asked before it.
func (s *Server) addResourceMetrics(agg *aggregator.APIAggregator, kubelets kubeletclient.KubeletClientConfig) error {
	core, ok := agg.GenericAPIServer.NextDelegate().(*genericapiserver.GenericAPIServer)
	if !ok {
		return fmt.Errorf("serve resource metrics: the aggregator delegates to %T", agg.GenericAPIServer.NextDelegate())
	}
	client, err := clientset.NewForConfig(s.cfg.Transport.Config(inproc.User("system:apiserver", "system:masters"), "resource-metrics"))
	if err != nil {
		return fmt.Errorf("make the client for resource metrics: %w", err)
	}
	info, err := kubeletclient.NewNodeConnectionInfoGetter(reachable(client.CoreV1().Nodes()), kubelets)
	if err != nil {
		return fmt.Errorf("make the client of kubelets for resource metrics: %w", err)
	}
	find := func(ctx context.Context, node string) (resourcemetrics.Kubelet, error) {
		k, err := info.GetConnectionInfo(ctx, types.NodeName(node))
		if err != nil {
			return resourcemetrics.Kubelet{}, err
		}
		return resourcemetrics.Kubelet{URL: url.URL{Scheme: k.Scheme, Host: net.JoinHostPort(k.Hostname, k.Port)}, Transport: k.Transport}, nil
	}
	return resourcemetrics.Install(core, client, find, s.log)
}

// reachable gets nodes from the API server's memory, and not those that have not been heard of: waiting for an answer of each
// would take seconds.
func reachable(nodes corev1client.NodeInterface) kubeletclient.NodeGetterFunc {
	return func(ctx context.Context, name string, _ metav1.GetOptions) (*corev1.Node, error) {
		n, err := nodes.Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
		if err != nil {
			return nil, err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown {
				return nil, fmt.Errorf("the node has not been heard of since %s", c.LastHeartbeatTime.UTC().Format(time.RFC3339))
			}
		}
		return n, nil
	}
}
