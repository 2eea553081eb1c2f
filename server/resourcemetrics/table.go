package resourcemetrics

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// cached is the resource version of whatever the API server has in memory.
const cached = "0"

// listOptions are for listing what the metrics are of.
func listOptions(o *internalversion.ListOptions) metav1.ListOptions {
	to := metav1.ListOptions{ResourceVersion: cached}
	if o != nil && o.LabelSelector != nil {
		to.LabelSelector = o.LabelSelector.String()
	}
	if o != nil && o.FieldSelector != nil {
		to.FieldSelector = o.FieldSelector.String()
	}
	return to
}

// table has the columns of metrics-server. used says what one object uses, in parts.
func table(object, options runtime.Object, used func(runtime.Object) ([]corev1.ResourceList, metav1.Duration)) (*metav1.Table, error) {
	var t metav1.Table
	if list, err := meta.ListAccessor(object); err == nil {
		t.ResourceVersion = list.GetResourceVersion()
	}
	if o, ok := options.(*metav1.TableOptions); !ok || !o.NoHeaders {
		t.ColumnDefinitions = []metav1.TableColumnDefinition{
			{Name: "Name", Type: "string", Format: "name", Description: "Name of the resource"},
			{Name: "cpu", Type: "string"},
			{Name: "memory", Type: "string"},
			{Name: "Window", Type: "string", Format: "duration"},
		}
	}
	var err error
	t.Rows, err = metatable.MetaToTableRow(object, func(o runtime.Object, _ metav1.Object, name, _ string) ([]any, error) {
		lists, window := used(o)
		sum := corev1.ResourceList{}
		for _, list := range lists {
			for name, q := range list {
				all := sum[name]
				all.Add(q)
				sum[name] = all
			}
		}
		return []any{name, sum.Cpu().String(), sum.Memory().String(), window.Round(time.Second).String()}, nil
	})
	return &t, err
}
