package resourcemetrics

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/metrics/pkg/apis/metrics"
)

// nodeMetrics is the resource nodes.
type nodeMetrics struct{ storage }

func (*nodeMetrics) New() runtime.Object     { return &metrics.NodeMetrics{} }
func (*nodeMetrics) NewList() runtime.Object { return &metrics.NodeMetricsList{} }

// Get asks one node.
func (m *nodeMetrics) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	n, err := m.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{ResourceVersion: cached})
	if err != nil {
		return nil, err // a status of the API
	}
	if all := m.of(ctx, *n); len(all) > 0 {
		return &all[0], nil
	}
	return nil, apierrors.NewNotFound(metrics.Resource("nodemetrics"), name)
}

// List asks all nodes that are selected.
func (m *nodeMetrics) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	nodes, err := m.client.CoreV1().Nodes().List(ctx, listOptions(options))
	if err != nil {
		return nil, err // a status of the API
	}
	return &metrics.NodeMetricsList{Items: m.of(ctx, nodes.Items...)}, nil
}

func (m *nodeMetrics) of(ctx context.Context, nodes ...corev1.Node) []metrics.NodeMetrics {
	all := make([]metrics.NodeMetrics, 0, len(nodes)) // an empty list is one, not null
	names := map[string]bool{}
	for i := range nodes {
		names[nodes[i].Name] = true
	}
	usages := m.reader.read(ctx, names)
	for i := range nodes {
		u := usages[nodes[i].Name]
		if u == nil || u.node == nil {
			continue
		}
		all = append(all, metrics.NodeMetrics{
			ObjectMeta: metav1.ObjectMeta{Name: nodes[i].Name, Labels: nodes[i].Labels, CreationTimestamp: metav1.Now()},
			Timestamp:  metav1.NewTime(u.node.at),
			Window:     metav1.Duration{Duration: u.node.window},
			Usage:      u.node.used,
		})
	}
	return all
}

// ConvertToTable is for kubectl get.
func (*nodeMetrics) ConvertToTable(_ context.Context, object, options runtime.Object) (*metav1.Table, error) {
	return table(object, options, func(o runtime.Object) ([]corev1.ResourceList, metav1.Duration) {
		m := o.(*metrics.NodeMetrics)
		return []corev1.ResourceList{m.Usage}, m.Window
	})
}
