//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// testScheduler names each of the two profiles of schedulerConfig, and one that is not there.
func (s *suite) testScheduler(t *testing.T) {
	for _, profile := range []string{"default-scheduler", "no-scoring-scheduler"} {
		pod := newPod("by-"+profile, idle())
		pod.Spec.SchedulerName = profile
		s.runs(t, pod)
		eventually(t, podTimeout, func(ctx context.Context) string { return s.scheduledBy(ctx, pod.Name, profile) })
	}
	pod := newPod("by-nobody", idle())
	pod.Spec.SchedulerName = "unknown-scheduler"
	s.create(t, pod)
	time.Sleep(3 * time.Second) // the other two were bound within this time
	s.pod(t, pod.Name, func(p *corev1.Pod) string {
		if p.Status.Phase != corev1.PodPending || p.Spec.NodeName != "" {
			t.Errorf("a pod for an unknown scheduler is %s on node %q", p.Status.Phase, p.Spec.NodeName)
		}
		return ""
	})
}

func (s *suite) scheduledBy(ctx context.Context, pod, profile string) string {
	events, err := s.client.CoreV1().Events("default").List(ctx, metav1.ListOptions{
		FieldSelector: "reason=Scheduled,involvedObject.name=" + pod,
	})
	if err != nil {
		return err.Error()
	}
	for _, e := range events.Items {
		if e.ReportingController == profile {
			return ""
		}
	}
	return fmt.Sprintf("no event says that %s scheduled %s: %v", profile, pod, events.Items)
}

func staticPod(name string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: %q, command: [sleep, infinity]}]
`, name, toolsImage)
}

// testStaticPods checks the pod that the URL in the configuration has had from the start, then adds and removes a file.
func (s *suite) testStaticPods(t *testing.T) {
	s.pod(t, "from-url-"+s.Node.Name(), isReady)
	file := dirs.PodManifests() + "/pod.yaml"
	put(t, s.Cluster, file, []byte(staticPod("from-file")))
	s.pod(t, "from-file-"+s.Node.Name(), isReady)
	if err := os.Remove(s.Node.Path(file)); err != nil {
		t.Fatal(err)
	}
	s.gone(t, "from-file-"+s.Node.Name())
}

func (s *suite) testHostPort(t *testing.T) {
	c := container("c", "tool", "serve")
	c.Ports = []corev1.ContainerPort{{ContainerPort: 8080, HostPort: 18090}}
	s.runs(t, newPod("host-port", c))
	s.answers(t, "http://"+s.Node.Addr()+":18090/", "host-port")
}

// probe tells at the first failure, but a slow answer is none.
func probe(h corev1.ProbeHandler) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: h, PeriodSeconds: 1, FailureThreshold: 1, TimeoutSeconds: 20}
}

func execProbe(command ...string) corev1.ProbeHandler {
	return corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: command}}
}

func tcpProbe(port int) corev1.ProbeHandler {
	return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(port)}}
}

func httpProbe(path string, port int) corev1.ProbeHandler {
	return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt(port)}}
}

func grpcProbe(service string, port int32) corev1.ProbeHandler {
	return corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: port, Service: ptr.To(service)}}
}

// testProbes has one container of each kind of probe that succeeds. The first stays unready until its startup probe finds
// the file, and its liveness probe, which fails until then, must not count before.
func (s *suite) testProbes(t *testing.T) {
	byExec := container("exec", "sleep", "infinity")
	byExec.StartupProbe = &corev1.Probe{ProbeHandler: execProbe("test", "-e", "/started"), PeriodSeconds: 1, FailureThreshold: 60}
	byExec.LivenessProbe = probe(execProbe("test", "-e", "/started"))
	byExec.ReadinessProbe = probe(execProbe("test", "-e", "/started"))
	byTCP := container("tcp", "tool", "serve", "--http=:8081", "--grpc=:9091")
	byTCP.ReadinessProbe = probe(tcpProbe(8081))
	byHTTP := container("http", "tool", "serve", "--http=:8082", "--grpc=:9092")
	byHTTP.ReadinessProbe = probe(httpProbe("/healthz", 8082))
	byGRPC := container("grpc", "tool", "serve", "--http=:8083", "--grpc=:9093")
	byGRPC.ReadinessProbe = probe(grpcProbe("", 9093))

	s.create(t, newPod("probes", byExec, byTCP, byHTTP, byGRPC))
	s.pod(t, "probes", readyContainers("http", "tcp", "grpc"))
	s.kubectl(t, "exec", "probes", "--container=exec", "--", "touch", "/started")
	pod := s.pod(t, "probes", isReady)
	for _, c := range pod.Status.ContainerStatuses {
		if c.RestartCount > 0 {
			t.Errorf("container %s was restarted", c.Name)
		}
	}
}

// readyContainers wants these containers to be ready, and no others.
func readyContainers(names ...string) func(*corev1.Pod) string {
	return func(p *corev1.Pod) string {
		if len(p.Status.ContainerStatuses) == 0 {
			return "has no containers yet"
		}
		for _, c := range p.Status.ContainerStatuses {
			want := false
			for _, n := range names {
				want = want || n == c.Name
			}
			if c.Ready != want {
				return fmt.Sprintf("container %s: ready is %v", c.Name, c.Ready)
			}
		}
		return ""
	}
}

// testFailingProbes has one container of each kind whose readiness probe fails, and one whose liveness probe begins to.
func (s *suite) testFailingProbes(t *testing.T) {
	byExec := container("exec", "sleep", "infinity")
	byExec.ReadinessProbe = probe(execProbe("false"))
	byTCP := container("tcp", "sleep", "infinity")
	byTCP.ReadinessProbe = probe(tcpProbe(8081))
	byHTTP := container("http", "tool", "serve", "--http=:8082", "--grpc=:9092")
	byHTTP.ReadinessProbe = probe(httpProbe("/nothing-there", 8082))
	byGRPC := container("grpc", "tool", "serve", "--http=:8083", "--grpc=:9093")
	byGRPC.ReadinessProbe = probe(grpcProbe("down", 9093))
	dying := container("dying", "tool", "serve", "--http=:8084", "--grpc=:9094")
	dying.LivenessProbe = probe(httpProbe("/healthz", 8084))
	dying.ReadinessProbe = dying.LivenessProbe // so that it listens when it is told to fail

	s.create(t, newPod("failing", byExec, byTCP, byHTTP, byGRPC, dying))
	pod := s.pod(t, "failing", readyContainers("dying"))
	s.exec(t, "failing", "wget", "-q", "-O-", "--post-data=", "http://"+pod.Status.PodIP+":8084/fail")
	s.pod(t, "failing", func(p *corev1.Pod) string {
		for _, c := range p.Status.ContainerStatuses {
			switch {
			case c.Name == "dying" && c.RestartCount == 0:
				return "the liveness probe has restarted nothing"
			case c.Name != "dying" && c.RestartCount > 0:
				t.Errorf("container %s was restarted for a readiness probe", c.Name)
			}
		}
		return ""
	})
}

// testRuntimeClass runs a pod by way of a class, and sees a class without a handler, and one that is not there, refused.
func (s *suite) testRuntimeClass(t *testing.T) {
	classes := s.client.NodeV1().RuntimeClasses()
	for name, handler := range map[string]string{"known": "runc", "without-handler": "no-such-handler"} {
		class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Handler: handler}
		if _, err := classes.Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	classy := func(class string) *corev1.Pod {
		pod := newPod("class-"+class, idle())
		pod.Spec.RuntimeClassName = ptr.To(class)
		return pod
	}
	s.runs(t, classy("known"))
	s.create(t, classy("without-handler"))
	eventually(t, podTimeout, func(ctx context.Context) string {
		events, err := s.client.CoreV1().Events("default").List(ctx, metav1.ListOptions{
			FieldSelector: "reason=FailedCreatePodSandBox,involvedObject.name=class-without-handler",
		})
		if err == nil && len(events.Items) > 0 && strings.Contains(events.Items[0].Message, "no-such-handler") {
			return ""
		}
		return fmt.Sprintf("no event says that the handler is unknown: %v, %v", events, err)
	})
	if _, err := s.client.CoreV1().Pods("default").Create(t.Context(), classy("missing"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a pod of a class that is not there: %v, want it forbidden", err)
	}
}
