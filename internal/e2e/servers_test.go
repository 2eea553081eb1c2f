//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clusterd/clusterd/internal/testkit/cluster"
	"github.com/clusterd/clusterd/internal/testkit/databases"
)

// reachable is a machine whose databases others use.
type reachable struct{ machine }

func (r reachable) Address() string { return r.node.Addr() }

// servers are two of them on one datastore, with a node that has joined.
type servers struct {
	first, second *suite
	agent         *joined
	secrets       []string // which no log may show
}

// TestServers has two servers on one datastore, and takes away now the one and now the other.
func TestServers(t *testing.T) {
	for _, row := range []struct {
		name  string
		start func(testing.TB, databases.Machine, int) *databases.Server
		port  int
	}{
		{"postgres", databases.Postgres, 5432},
		{"etcd", databases.Etcd, 2379},
		{"mariadb", databases.MariaDB, 3306},
		{"nats", databases.NATS, 4222},
	} {
		t.Run(row.name, func(t *testing.T) {
			node, err := machines.Up(t.Context(), "hd")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := node.Down(context.WithoutCancel(t.Context())); err != nil {
					t.Error(err)
				}
			})
			db := row.start(t, reachable{machine{node}}, row.port)
			s := startServers(t, db)
			s.deploy(t)
			s.testTogether(t)
			s.testKilled(t)
			s.testRotated(t)
			s.testBack(t)
			s.testCut(t)
			for _, one := range []*cluster.Cluster{s.first.Cluster, s.second.Cluster, s.agent.agent} {
				for _, secret := range append(s.secrets, s.secret(t), databases.Password) {
					if strings.Contains(one.Log(), secret) {
						t.Errorf("the log of %s has a password or a token", one.Node.Name())
					}
				}
			}
		})
	}
}

// startServers starts the first server, has the second refused for what it is given, and starts it and the node.
func startServers(t *testing.T, db *databases.Server) *servers {
	t.Helper()
	config := []byte("datastore-endpoint: '" + db.Endpoint + "'\n")
	one, other := newCluster(t, "ha"), newCluster(t, "hb")
	put(t, one, "/etc/clusterd/config.yaml", config)
	put(t, other, "/etc/clusterd/config.yaml", config)
	s := &servers{first: start(t, one)}
	token := readFile(t, one, dirs.ServerJoinToken())

	wants(t, refused(t, other, 1, nil), "--token", "server/server-token")
	wants(t, refused(t, other, 1, nil, "--token", "sesame"), "the token is not that of the servers", "server/server-token")
	wants(t, refused(t, other, 1, nil, "--join", s.first.url(), "--token", s.first.nodeToken(t)), "for nodes")
	wants(t, refused(t, other, 1, nil, "--join", s.first.url(), "--token", "K10"+strings.Repeat("0", 64)+"::sesame"), "is not the one that the token is for")
	wants(t, refused(t, other, 1, nil, "--join", s.first.url(), "--token", token, "--service-cidr", "10.99.0.0/16"), "--service-cidr is 10.99.0.0/16 here")
	wants(t, refused(t, other, 2, nil, "--join", s.first.url(), "--token", token, "--datastore-endpoint", "sqlite://"), "share a datastore")

	put(t, other, "/etc/clusterd/token", []byte(token+"\n"))
	other.Args = []string{"--join", s.first.url(), "--token-file", "/etc/clusterd/token"}
	s.second = start(t, other)
	s.agent = &joined{suite: s.first, agent: newAgent(t, s.first, "hc", "--token", s.first.nodeToken(t))}
	s.agent.startAgent(t)
	return s
}

func readFile(t *testing.T, c *cluster.Cluster, path string) string {
	t.Helper()
	b, err := os.ReadFile(c.Node.Path(path))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func (s *servers) secret(t *testing.T) string {
	t.Helper()
	return readFile(t, s.first.Cluster, dirs.ServerToken())
}

// deploy makes a Deployment on the joined node, which lives as long as the servers come and go.
func (s *servers) deploy(t *testing.T) {
	t.Helper()
	labels := map[string]string{"app": "lasting"}
	_, err := s.first.client.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "lasting"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](1), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				NodeSelector: map[string]string{corev1.LabelHostname: s.agent.agent.Node.Name()}, Containers: []corev1.Container{idle()},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.pods(t, s.second, 1)
}

// scale asks one of the servers for pods and waits until they are Ready.
func (s *servers) scale(t *testing.T, by *suite, n int32) {
	t.Helper()
	eventually(t, podTimeout, func(ctx context.Context) string { // a server that has just come needs a moment for the others' writes
		scale, err := by.client.AppsV1().Deployments("default").GetScale(ctx, "lasting", metav1.GetOptions{})
		if err == nil {
			scale.Spec.Replicas = n
			_, err = by.client.AppsV1().Deployments("default").UpdateScale(ctx, "lasting", scale, metav1.UpdateOptions{})
		}
		if err != nil {
			return err.Error()
		}
		return ""
	})
	s.pods(t, by, n)
}

func (s *servers) pods(t *testing.T, by *suite, n int32) {
	t.Helper()
	eventually(t, podTimeout, func(ctx context.Context) string {
		d, err := by.client.AppsV1().Deployments("default").Get(ctx, "lasting", metav1.GetOptions{})
		if err != nil || d.Status.ReadyReplicas != n || d.Status.ObservedGeneration != d.Generation {
			return fmt.Sprintf("%v ready pods, want %d: %v", d.Status.ReadyReplicas, n, err)
		}
		return ""
	})
}

// known waits until the cluster tells nodes and pods of these servers and no others.
func (s *servers) known(t *testing.T, by *suite, all ...*suite) {
	t.Helper()
	eventually(t, podTimeout, func(ctx context.Context) string {
		slice, err := by.client.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		told, err := by.client.CoreV1().ConfigMaps("kube-system").Get(ctx, "clusterd-cluster", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		found := 0
		for _, one := range []*suite{s.first, s.second} {
			if strings.Contains(told.Data["info"], one.Node.Addr()+":6443") {
				found++
			}
		}
		if len(slice.Endpoints) != len(all) || found != len(all) {
			return fmt.Sprintf("%d endpoints, and nodes are told of %d servers, want %d", len(slice.Endpoints), found, len(all))
		}
		for _, one := range all {
			if !strings.Contains(fmt.Sprint(slice.Endpoints)+told.Data["info"], one.Node.Addr()) {
				return one.Node.Name() + " is not among the servers"
			}
		}
		return ""
	})
}

// leader is the server that runs the controllers, and the other one.
func (s *servers) leader(t *testing.T) (leader, other *suite) {
	t.Helper()
	eventually(t, podTimeout, func(ctx context.Context) string {
		lease, err := s.first.client.CoordinationV1().Leases("kube-system").Get(ctx, "kube-controller-manager", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		who, _, _ := strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
		switch who {
		case s.first.Node.Name():
			leader, other = s.first, s.second
		case s.second.Node.Name():
			leader, other = s.second, s.first
		default:
			return "nobody leads"
		}
		return ""
	})
	return leader, other
}

// testTogether looks at the two servers while both run.
func (s *servers) testTogether(t *testing.T) {
	s.known(t, s.first, s.first, s.second)
	s.reachAll(t)
	for _, name := range []string{"server-ca.key", "client-ca.key", "service.key"} {
		file := dirs.ServerTLS() + "/" + name
		private(t, s.second.Node.Path(file))
		if readFile(t, s.first.Cluster, file) != readFile(t, s.second.Cluster, file) {
			t.Errorf("%s is not the same on both", name)
		}
	}
	private(t, s.first.Node.Path(dirs.ServerJoinToken()))
	s.scale(t, s.second, 2)
}

// reachAll reaches each node by each server, and has it show all nodes.
func (s *servers) reachAll(t *testing.T) {
	t.Helper()
	for _, one := range []*suite{s.first, s.second} {
		nodes := one.kubectl(t, "get", "nodes", "-o", "wide")
		for _, n := range []*cluster.Cluster{s.first.Cluster, s.second.Cluster, s.agent.agent} {
			wants(t, nodes, n.Node.Name(), n.Node.Addr())
			eventually(t, podTimeout, func(ctx context.Context) string { // by each server to each node
				out, err := one.Clusterd(ctx, nil, "kubectl", "get", "--raw", "/api/v1/nodes/"+n.Node.Name()+"/proxy/healthz")
				if err != nil || !strings.Contains(out, "ok") {
					return fmt.Sprintf("%s does not reach %s: %q, %v", one.Node.Name(), n.Node.Name(), out, err)
				}
				return ""
			})
		}
	}
}

// testKilled kills the server that runs the controllers. Everything goes on by the other one.
func (s *servers) testKilled(t *testing.T) {
	leader, other := s.leader(t)
	name := s.agent.agent.Node.Name()
	began := time.Now()
	if err := leader.Kill(); err != nil {
		t.Fatal(err)
	}
	wants(t, other.kubectl(t, "get", "nodes"), name)
	s.scale(t, other, 4)
	t.Logf("pods were made %.1f s after the server was killed", time.Since(began).Seconds())
	s.known(t, other, other)
	t.Logf("the other one was the only server %.1f s after that", time.Since(began).Seconds())
	pods, err := other.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=lasting"})
	if err != nil {
		t.Fatal(err)
	}
	other.tries(t, pods.Items[0].Name, contains(pods.Items[0].Name), "hostname")
	stayedReady(t, other, name, began)
}

// stayedReady wants the node to be Ready, and to have been all the time.
func stayedReady(t *testing.T, by *suite, name string, since time.Time) {
	t.Helper()
	node, err := by.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && (c.Status != corev1.ConditionTrue || c.LastTransitionTime.After(since)) {
			t.Errorf("node %s: Ready is %s since %s, when the server was killed at %s", name, c.Status, c.LastTransitionTime, since)
		}
	}
}

// testRotated changes the servers' token while one of them is away. That one comes back all the same, and once both run
// again, what is changed on one is changed on the other.
func (s *servers) testRotated(t *testing.T) {
	away, other := s.first, s.second
	select {
	case <-other.Server().Done():
		away, other = other, away
	default:
	}
	s.rotate(t, other)
	away.start(t)
	s.sameTokens(t)
	s.known(t, other, s.first, s.second)
	s.rotate(t, away)
	s.sameTokens(t)
}

// rotate changes the servers' token on one of them, which has told the others when the command ends.
func (s *servers) rotate(t *testing.T, on *suite) {
	t.Helper()
	before := readFile(t, on.Cluster, dirs.ServerToken())
	s.secrets = append(s.secrets, before)
	if _, err := on.Clusterd(within(t, podTimeout), nil, "token", "rotate"); err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(readFile(t, on.Cluster, dirs.ServerJoinToken()), before) {
		t.Error("the token for further servers is the one before")
	}
}

// sameTokens waits until the servers have the same ones, for nodes and for further servers.
func (s *servers) sameTokens(t *testing.T) {
	t.Helper()
	eventually(t, podTimeout, func(context.Context) string {
		for _, file := range []string{dirs.ServerToken(), dirs.ServerJoinToken(), dirs.NodeToken()} {
			if readFile(t, s.first.Cluster, file) != readFile(t, s.second.Cluster, file) {
				return file + " is not the same on both servers"
			}
		}
		return ""
	})
}

// testBack has the server that came back do the work of both.
func (s *servers) testBack(t *testing.T) {
	s.scale(t, s.first, 1)
	s.scale(t, s.second, 2)
	leader, other := s.leader(t)
	began := time.Now()
	if err := leader.Stop(stopTimeout); err != nil {
		t.Fatalf("stop: %v", err)
	}
	s.scale(t, other, 3)
	t.Logf("pods were made %.1f s after the server was told to stop", time.Since(began).Seconds())
	s.known(t, other, other)
	stayedReady(t, other, s.agent.agent.Node.Name(), began)
	leader.start(t)
	s.known(t, leader, s.first, s.second)
	s.scale(t, leader, 1)
}

// testCut takes the cable of the server that runs the controllers out, and puts it back.
func (s *servers) testCut(t *testing.T) {
	leader, other := s.leader(t)
	began := time.Now()
	if err := leader.Node.Cut(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.scale(t, other, 2)
	t.Logf("pods were made %.1f s after the server's cable was out", time.Since(began).Seconds())
	s.known(t, other, other)
	stayedReady(t, other, s.agent.agent.Node.Name(), began)
	if err := leader.Node.Heal(t.Context()); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	s.known(t, other, s.first, s.second)
	s.reachAll(t)
	s.scale(t, leader, 1)
	t.Logf("both servers worked %.1f s after the cable was back", time.Since(began).Seconds())
}
