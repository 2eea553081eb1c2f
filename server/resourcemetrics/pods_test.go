package resourcemetrics

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/metrics/pkg/apis/metrics"
)

// twoPods is what a kubelet says of two pods of one name, the older of which still ends, and of a static one.
var twoPods = strings.Replace(summary, `"pods": []`, `"pods": [`+podSummary("web-0", "new", "7")+","+podSummary("web-0", "old", "900")+","+podSummary("static", "of-the-file", "5")+"]", 1)

func podSummary(name, uid string, megabytes string) string {
	return `{"podRef": {"name": "` + name + `", "namespace": "ns", "uid": "` + uid + `"}, "containers": [{
		"name": "c", "startTime": "2026-01-01T00:00:00Z",
		"cpu": {"time": "2026-01-02T00:00:00Z", "usageNanoCores": 1000000, "usageCoreNanoSeconds": 1000000},
		"memory": {"workingSetBytes": ` + megabytes + `000000}}]}`
}

func podOn(name string, uid types.UID, phase corev1.PodPhase, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: uid, Annotations: annotations, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{NodeName: "good"},
		Status:     corev1.PodStatus{Phase: phase},
	}
}

func TestPods(t *testing.T) {
	var asked atomic.Int32
	client := fake.NewClientset(
		podOn("web-0", "new", corev1.PodRunning, nil),
		podOn("done", "old", corev1.PodSucceeded, nil), // as if the kubelet had it still
		podOn("unknown", "other", corev1.PodRunning, nil),
		podOn("static", "of-the-mirror", corev1.PodRunning, map[string]string{corev1.MirrorPodAnnotationKey: "of-the-file"}),
	)
	m := &podMetrics{storage{client, newReader(kubelets{"good": says(&asked, http.StatusOK, twoPods)}), "PodMetrics", true}}
	ctx := request.WithNamespace(t.Context(), "ns")
	got, err := m.List(ctx, &internalversion.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range got.(*metrics.PodMetricsList).Items {
		names = append(names, p.Name+" "+p.Containers[0].Usage.Memory().String())
	}
	slices.Sort(names)
	if want := []string{"static 5000000", "web-0 7000000"}; !slices.Equal(names, want) {
		t.Errorf("pods %q, want %q", names, want)
	}
	if _, err := m.Get(ctx, "unknown", nil); !apierrors.IsNotFound(err) {
		t.Errorf("a pod that the kubelet does not know: %v", err)
	}
	table, err := m.ConvertToTable(ctx, got, nil)
	if err != nil || len(table.Rows) != 2 || len(table.Rows[0].Cells) != len(table.ColumnDefinitions) {
		t.Errorf("the table is %v, %v", table, err)
	}
	empty, err := m.List(request.WithNamespace(t.Context(), "empty"), nil)
	if err != nil || empty.(*metrics.PodMetricsList).Items == nil {
		t.Errorf("a namespace without pods has the list %v, %v", empty, err)
	}
}
