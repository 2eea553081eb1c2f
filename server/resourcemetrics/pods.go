package resourcemetrics

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/metrics/pkg/apis/metrics"
)

// podMetrics is the resource pods.
type podMetrics struct{ storage }

func (*podMetrics) New() runtime.Object     { return &metrics.PodMetrics{} }
func (*podMetrics) NewList() runtime.Object { return &metrics.PodMetricsList{} }

// Get asks the node of one pod.
func (m *podMetrics) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	p, err := m.client.CoreV1().Pods(request.NamespaceValue(ctx)).Get(ctx, name, metav1.GetOptions{ResourceVersion: cached})
	if err != nil {
		return nil, err // a status of the API
	}
	if all := m.of(ctx, *p); len(all) > 0 {
		return &all[0], nil
	}
	return nil, apierrors.NewNotFound(metrics.Resource("podmetrics"), p.Namespace+"/"+name)
}

// List asks the nodes that have any of the pods that are selected.
func (m *podMetrics) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	pods, err := m.client.CoreV1().Pods(request.NamespaceValue(ctx)).List(ctx, listOptions(options))
	if err != nil {
		return nil, err // a status of the API
	}
	return &metrics.PodMetricsList{Items: m.of(ctx, pods.Items...)}, nil
}

func (m *podMetrics) of(ctx context.Context, pods ...corev1.Pod) []metrics.PodMetrics {
	all := make([]metrics.PodMetrics, 0, len(pods)) // an empty list is one, not null
	nodes := map[string]bool{}
	for i := range pods {
		if pods[i].Status.Phase == corev1.PodRunning {
			nodes[pods[i].Spec.NodeName] = true
		}
	}
	usages := m.reader.read(ctx, nodes)
	for i := range pods {
		p := &pods[i]
		u := usages[p.Spec.NodeName]
		if u == nil || p.Status.Phase != corev1.PodRunning {
			continue
		}
		used, ok := u.pods[uid(p)]
		if !ok {
			continue
		}
		all = append(all, metrics.PodMetrics{
			ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, Labels: p.Labels, CreationTimestamp: metav1.Now()},
			Timestamp:  metav1.NewTime(used.at),
			Window:     metav1.Duration{Duration: used.window},
			Containers: used.containers,
		})
	}
	return all
}

// uid is by what a kubelet knows the pod: with a static one, that is not the UID of its mirror in the API.
func uid(p *corev1.Pod) types.UID {
	if static, ok := p.Annotations[corev1.MirrorPodAnnotationKey]; ok {
		return types.UID(static)
	}
	return p.UID
}

// ConvertToTable is for kubectl get.
func (*podMetrics) ConvertToTable(_ context.Context, object, options runtime.Object) (*metav1.Table, error) {
	return table(object, options, func(o runtime.Object) ([]corev1.ResourceList, metav1.Duration) {
		m := o.(*metrics.PodMetrics)
		var lists []corev1.ResourceList
		for _, c := range m.Containers {
			lists = append(lists, c.Usage)
		}
		return lists, m.Window
	})
}
