//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/clusterd/clusterd/internal/testkit/cluster"
)

const (
	// startTimeout is for a server to be of use, podTimeout for a pod to do what its test wants of it. Both are far
	// more than it takes, for a machine that is busy with other things.
	startTimeout = 2 * time.Minute
	podTimeout   = 90 * time.Second
)

// suite is a running cluster with what its tests need all the time.
type suite struct {
	*cluster.Cluster
	client *kubernetes.Clientset
}

// start starts the server and waits until its node is Ready.
func start(t *testing.T, c *cluster.Cluster) *suite {
	t.Helper()
	s := &suite{Cluster: c}
	s.start(t)
	return s
}

func (s *suite) start(t *testing.T) {
	t.Helper()
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	client, err := s.Ready(within(t, startTimeout))
	if err != nil {
		t.Fatal(err)
	}
	s.client = client
	t.Logf("node Ready after %.1f s", time.Since(s.Began()).Seconds())
}

// eventually polls until done has nothing left to wait for, which it says by an empty string.
func eventually(t *testing.T, timeout time.Duration, done func(context.Context) string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	for missing := ""; ; {
		now := done(ctx)
		if now == "" {
			return
		}
		if ctx.Err() == nil || missing == "" { // else it may only say that the time is over
			missing = now
		}
		select {
		case <-ctx.Done():
			t.Fatalf("after %s: %s", timeout, missing)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// kubectl calls kubectl in the node and returns its standard output.
func (s *suite) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return s.kubectlWith(t, "", args...)
}

func (s *suite) kubectlWith(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	out, err := s.Clusterd(within(t, podTimeout), strings.NewReader(stdin), append([]string{"kubectl"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// exec runs a command in a pod of the default namespace.
func (s *suite) exec(t *testing.T, pod string, command ...string) string {
	t.Helper()
	return strings.TrimSpace(s.kubectl(t, append([]string{"exec", pod, "--"}, command...)...))
}

// tries runs a command in a pod until its output is as wanted.
func (s *suite) tries(t *testing.T, pod string, good func(string) bool, command ...string) {
	t.Helper()
	eventually(t, podTimeout, func(ctx context.Context) string {
		out, err := s.Clusterd(ctx, nil, append([]string{"kubectl", "exec", pod, "--"}, command...)...)
		if err == nil && good(strings.TrimSpace(out)) {
			return ""
		}
		return fmt.Sprintf("%q in pod %s: %q, %v", command, pod, out, err)
	})
}

// contains makes a condition for tries.
func contains(words ...string) func(string) bool {
	return func(out string) bool {
		for _, w := range words {
			if !strings.Contains(out, w) {
				return false
			}
		}
		return true
	}
}

// newPod is a pod that is gone soon after it is deleted.
func newPod(name string, containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{Containers: containers, TerminationGracePeriodSeconds: ptr.To[int64](1)},
	}
}

// container runs a command of the tools image.
func container(name string, command ...string) corev1.Container {
	return corev1.Container{Name: name, Image: toolsImage, Command: command, ImagePullPolicy: corev1.PullNever}
}

// idle is a container that lives until it is told to stop.
func idle() corev1.Container {
	return container("c", "sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1 & wait; done")
}

// create makes a pod in the default namespace, to be deleted after the test.
func (s *suite) create(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	pods := s.client.CoreV1().Pods("default")
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = pods.Delete(context.WithoutCancel(t.Context()), pod.Name, metav1.DeleteOptions{})
	})
}

// pod waits until a pod is as wanted and returns it; the condition's string is what it still lacks.
func (s *suite) pod(t *testing.T, name string, lacks func(*corev1.Pod) string) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	eventually(t, podTimeout, func(ctx context.Context) string {
		var err error
		if pod, err = s.client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		if l := lacks(pod); l != "" {
			return fmt.Sprintf("pod %s: %s; status: %s", name, l, summary(pod))
		}
		return ""
	})
	return pod
}

func summary(p *corev1.Pod) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s", p.Status.Phase, p.Status.Reason, p.Status.Message)
	for _, c := range p.Status.ContainerStatuses {
		fmt.Fprintf(&b, "; container %s ready=%v restarts=%d", c.Name, c.Ready, c.RestartCount)
		if w := c.State.Waiting; w != nil {
			fmt.Fprintf(&b, " waiting: %s %s", w.Reason, w.Message)
		}
		if w := c.State.Terminated; w != nil {
			fmt.Fprintf(&b, " ended: %d %s %s", w.ExitCode, w.Reason, w.Message)
		}
	}
	return b.String()
}

func isReady(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return ""
		}
	}
	return "is not Ready"
}

// runs makes a pod and waits until it is Ready.
func (s *suite) runs(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	s.create(t, pod)
	return s.pod(t, pod.Name, isReady)
}

// gone waits until there is no such pod.
func (s *suite) gone(t *testing.T, name string) {
	t.Helper()
	eventually(t, podTimeout, func(ctx context.Context) string {
		pods, err := s.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil {
			return err.Error()
		}
		if len(pods.Items) > 0 {
			return "pod " + name + " is still there: " + summary(&pods.Items[0])
		}
		return ""
	})
}

// get fetches a URL whose host is an IP address from inside the node.
func (s *suite) get(ctx context.Context, url string) (int, string, error) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DialContext:       s.Node.Network().DialContext,
		DisableKeepAlives: true,
	}}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	res, err := client.Do(q)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, strings.TrimSpace(string(body)), err
}

// answers waits until a URL gives 200 and a body that has the word.
func (s *suite) answers(t *testing.T, url, word string) {
	t.Helper()
	eventually(t, podTimeout, func(ctx context.Context) string {
		status, body, err := s.get(ctx, url)
		if err == nil && status == http.StatusOK && strings.Contains(body, word) {
			return ""
		}
		return fmt.Sprintf("GET %s: %d %q, %v", url, status, body, err)
	})
}
