package kubelet

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
)

// announceStart says on a Node that an earlier run has left Ready that its kubelet is starting.
//
// Why: the kubelet's first report after a restart is always "not ready" (it has not looked at its containers yet). It follows
// that up at once only if the Node was not Ready to begin with; else the next report, and with it the readiness of all pods
// of the node, waits ten seconds.
func announceStart(ctx context.Context, c clientset.Interface, node string) error {
	n, err := c.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	now := metav1.NewTime(time.Now())
	for i := range n.Status.Conditions {
		if r := &n.Status.Conditions[i]; r.Type == v1.NodeReady && r.Status == v1.ConditionTrue {
			r.Status, r.Reason, r.Message = v1.ConditionFalse, "KubeletStarting", "the kubelet is starting"
			r.LastHeartbeatTime, r.LastTransitionTime = now, now
			_, err = c.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{})
		}
	}
	return err
}
