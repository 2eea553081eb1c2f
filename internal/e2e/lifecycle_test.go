//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// stopTimeout is what a user may have to wait for a stop.
const stopTimeout = 10 * time.Second

// testSecondInstance starts another server on the same data directory.
func (s *suite) testSecondInstance(t *testing.T) {
	began := time.Now()
	wants(t, refused(t, s.Cluster, 1, nil), dirs.Root(), "in use", "pid")
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s to say so", took)
	}
}

// containers maps pod/container of the default namespace to what must survive a restart: its ID, when it was started and
// how often.
func (s *suite) containers(t *testing.T) map[string]string {
	t.Helper()
	pods, err := s.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, p := range pods.Items {
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Running != nil {
				found[p.Name+"/"+c.Name] = fmt.Sprint(c.ContainerID, " ", c.State.Running.StartedAt, " ", c.RestartCount)
			}
		}
	}
	return found
}

// testRestart stops and starts the server below running pods, with another name for its certificate.
func (s *suite) testRestart(t *testing.T) {
	client := s.pod(t, "client", isReady)
	before := s.containers(t)
	if len(before) < 4 {
		t.Fatalf("only %d containers run: %v", len(before), before)
	}
	began := time.Now()
	if err := s.Stop(stopTimeout); err != nil {
		t.Fatalf("stop: %v", err)
	}
	t.Logf("stopped in %.1f s", time.Since(began).Seconds())
	if _, err := s.Node.Output(t.Context(), "ip", "route", "get", client.Status.PodIP); err != nil {
		t.Error(err)
	}
	put(t, s.Cluster, "/etc/clusterd/config.yaml", []byte(strings.Replace(configFile, "first.example", "second.example", 1)))

	s.start(t)
	if err := s.serving(t, "6443").VerifyHostname("second.example"); err != nil {
		t.Error(err)
	}
	s.tries(t, "client", contains("web-"), "tool", "get", "http://web/")
	time.Sleep(5 * time.Second) // for a kubelet that means to restart something to do it
	after := s.containers(t)
	for name, state := range before {
		if after[name] != state {
			t.Errorf("container %s was %s, is %s", name, state, after[name])
		}
	}
}

// testKill ends the server among writes and wants everything back that was acknowledged.
func (s *suite) testKill(t *testing.T) {
	var mu sync.Mutex
	var acknowledged []string
	writing := make(chan struct{})
	for worker := range 4 {
		go func() {
			for i := 0; ; i++ {
				m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("kept-%d-%d", worker, i)}}
				m.Data = map[string]string{"name": m.Name}
				if _, err := s.client.CoreV1().ConfigMaps("default").Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
					return // the server is gone
				}
				mu.Lock()
				if acknowledged = append(acknowledged, m.Name); len(acknowledged) == 200 {
					close(writing)
				}
				mu.Unlock()
			}
		}()
	}
	select {
	case <-writing:
	case <-time.After(podTimeout):
		t.Fatal("200 objects could not be written")
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	s.start(t)
	maps, err := s.client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, m := range maps.Items {
		there[m.Name] = m.Data["name"] == m.Name
	}
	for _, name := range acknowledged {
		if !there[name] {
			t.Errorf("%s was acknowledged and is lost", name)
		}
	}
	t.Logf("%d objects acknowledged before the kill", len(acknowledged))
}

// testKillAmongPods ends the server while fifty pods start and while they are deleted, and counts what is left.
func (s *suite) testKillAmongPods(t *testing.T) {
	const count = 50
	pods := s.client.CoreV1().Pods("default")
	for i := range count {
		pod := newPod(fmt.Sprintf("many-%d", i), container("c", "sleep", "infinity"))
		pod.Labels = map[string]string{"app": "many"}
		if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.many(t, "10 pods Ready", func(ready, _ int) bool { return ready >= 10 })
	s.crash(t)
	s.many(t, "all pods Ready", func(ready, _ int) bool { return ready == count })
	eventually(t, podTimeout, func(ctx context.Context) string { return s.leaks(ctx) })

	if err := pods.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app=many"}); err != nil {
		t.Fatal(err)
	}
	s.many(t, "10 pods gone", func(_, left int) bool { return left <= count-10 })
	s.crash(t)
	s.many(t, "all pods gone", func(_, left int) bool { return left == 0 })
	eventually(t, podTimeout, func(ctx context.Context) string { return s.leaks(ctx) })
}

func (s *suite) crash(t *testing.T) {
	t.Helper()
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	s.start(t)
}

// many waits until the numbers of Ready and of existing pods among the fifty are as wanted.
func (s *suite) many(t *testing.T, what string, good func(ready, left int) bool) {
	t.Helper()
	began := time.Now()
	eventually(t, 3*time.Minute, func(ctx context.Context) string {
		list, err := s.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=many"})
		if err != nil {
			return err.Error()
		}
		ready, odd := 0, ""
		for _, p := range list.Items {
			if isReady(&p) == "" {
				ready++
			} else {
				odd = p.Name + ": " + summary(&p)
			}
		}
		if good(ready, len(list.Items)) {
			return ""
		}
		return fmt.Sprintf("not %s: %d there, %d Ready; %s", what, len(list.Items), ready, odd)
	})
	t.Logf("%s after %.1f s", what, time.Since(began).Seconds())
}

// leaks compares the pods that the API knows with the addresses, veths and network namespaces of the node, and says where
// they differ. No address may be given twice.
func (s *suite) leaks(ctx context.Context) string {
	list, err := s.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	pods, owner := 0, map[string]string{}
	for _, p := range list.Items {
		if p.Spec.HostNetwork || p.Status.Phase != corev1.PodRunning {
			continue
		}
		pods++
		if other := owner[p.Status.PodIP]; other != "" {
			return fmt.Sprintf("%s and %s have the same address %s", p.Name, other, p.Status.PodIP)
		}
		owner[p.Status.PodIP] = p.Name
	}
	veths, err := s.Node.Output(ctx, "ip", "-oneline", "link", "show", "master", "clusterd0")
	if err != nil {
		return err.Error()
	}
	mounts, err := os.ReadFile(s.Node.Path("/proc/1/mounts"))
	if err != nil {
		return err.Error()
	}
	held, err := s.addresses()
	if err != nil {
		return err.Error()
	}
	interfaces, namespaces := strings.Count(veths, "\n"), strings.Count(string(mounts), " nsfs ")
	if interfaces != pods || namespaces != pods || held != pods {
		return fmt.Sprintf("%d pods, %d interfaces on the bridge, %d network namespaces, %d addresses held", pods, interfaces, namespaces, held)
	}
	return ""
}

// addresses counts the records of the node's address management: one file an interface, named SANDBOX@INTERFACE.
func (s *suite) addresses() (int, error) {
	found, err := filepath.Glob(filepath.Join(s.Node.Path(dirs.NetworkState()), "pods", "*@*"))
	return len(found), err
}
