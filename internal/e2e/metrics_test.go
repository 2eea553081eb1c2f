//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// busy is a Deployment whose pod works as much as it may, and who makes more of them while they do.
const busy = `apiVersion: apps/v1
kind: Deployment
metadata: {name: busy}
spec:
  selector: {matchLabels: {app: busy}}
  template:
    metadata: {labels: {app: busy}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: c
        image: ` + toolsImage + `
        imagePullPolicy: Never
        command: [sh, -c, "while :; do :; done"]
        resources: {requests: {cpu: 20m}, limits: {cpu: 200m}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: busy}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: busy}
  maxReplicas: 2
  metrics:
  - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}
`

// testResourceMetrics reads what nodes and pods use, as users and the horizontal pod autoscaler do.
func (s *suite) testResourceMetrics(t *testing.T) {
	s.kubectlWith(t, busy, "apply", "-f", "-")
	t.Cleanup(func() {
		_, _ = s.Clusterd(context.WithoutCancel(t.Context()), strings.NewReader(busy), "kubectl", "delete", "-f", "-")
	})
	s.tops(t, "node", s.Node.Name())
	cpu := s.tops(t, "pod", "busy-")
	if cpu < 10 || cpu > 300 { // millicores: its limit is 200, and the machine may be busy with more important things
		t.Errorf("the pod that may use 200m uses %dm", cpu)
	}
	wants(t, s.kubectl(t, "get", "pods.v1beta1.metrics.k8s.io", "--selector=app=busy"), "CPU", "MEMORY", "WINDOW", "busy-")
	s.kubectl(t, "create", "rolebinding", "looker", "--clusterrole=view", "--user=looker")
	t.Cleanup(func() {
		_, _ = s.Clusterd(context.WithoutCancel(t.Context()), nil, "kubectl", "delete", "rolebinding", "looker")
	})
	wants(t, s.kubectl(t, "top", "pod", "--as=looker", "--selector=app=busy"), "busy-")
	if out, err := s.Clusterd(t.Context(), nil, "kubectl", "top", "node", "--as=looker"); err == nil {
		t.Errorf("somebody without rights for nodes reads what they use: %s", out)
	}
	eventually(t, 2*podTimeout, func(ctx context.Context) string { // the autoscaler waits until the first pod has a whole window behind it
		d, err := s.client.AppsV1().Deployments("default").Get(ctx, "busy", metav1.GetOptions{})
		if err == nil && d.Status.Replicas == 2 {
			return ""
		}
		return fmt.Sprintf("the autoscaler makes no second pod: %v, %v", d.Status, err)
	})
}

// tops waits until kubectl top has something whose name begins so, and returns its CPU, in millicores.
func (s *suite) tops(t *testing.T, kind, prefix string) (cpu int) {
	t.Helper()
	line := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(prefix) + `\S*\s+(\d+)m(?:\s+\d+%)?\s+\d+Mi\b`)
	eventually(t, podTimeout, func(ctx context.Context) string {
		out, err := s.Clusterd(ctx, nil, "kubectl", "top", kind)
		if found := line.FindStringSubmatch(out); err == nil && found != nil {
			_, err := fmt.Sscan(found[1], &cpu)
			return errorText(err)
		}
		return fmt.Sprintf("kubectl top %s has no %s: %s, %v", kind, prefix, out, err)
	})
	return cpu
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
