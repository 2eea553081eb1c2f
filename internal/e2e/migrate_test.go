//go:build e2e

package e2e

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterd/clusterd/internal/testkit/cluster"
	"github.com/clusterd/clusterd/internal/testkit/databases"
	"github.com/clusterd/clusterd/internal/testkit/image"
)

// TestMigrate moves a cluster with a running pod from its file to PostgreSQL and back.
func TestMigrate(t *testing.T) {
	c := newCluster(t, "migrate")
	t.Parallel()
	put(t, c, dirs.Images()+"/tools.tar", image.Bytes(t, tools))
	db := databases.Postgres(t, machine{c.Node}, 5432)
	s := start(t, c)
	before := s.runs(t, newPod("stays", idle()))
	kept := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}, Data: map[string]string{"a": "b"}}
	if _, err := s.client.CoreV1().ConfigMaps("default").Create(t.Context(), kept, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.cannot(t, 1, []string{"in use by another clusterd", "pid"}, "--from=sqlite://", "--to="+db.Endpoint)
	s.cannot(t, 2, []string{"--to", "PostgreSQL"}, "--from=sqlite://", "--to=postgres://u:"+databases.Password+"@h:port/db")
	s.cannot(t, 2, []string{"from"}, "--to="+db.Endpoint)

	s.move(t, "sqlite://", db.Endpoint)
	put(t, c, "/etc/clusterd/config.yaml", []byte("datastore-endpoint: '"+db.Endpoint+"'\n"))
	s.start(t)
	s.asBefore(t, before)
	s.runs(t, newPod("more", idle()))

	// The file is as it was; the state has gone on elsewhere.
	if err := s.Stop(stopTimeout); err != nil {
		t.Fatal(err)
	}
	s.cannot(t, 1, []string{"not empty"}, "--from="+db.Endpoint, "--to=sqlite://")
	s.move(t, db.Endpoint, "sqlite:///var/lib/clusterd/server/db/moved.db")
	put(t, c, "/etc/clusterd/config.yaml", []byte("datastore-endpoint: sqlite:///var/lib/clusterd/server/db/moved.db\n"))
	s.start(t)
	s.asBefore(t, before)
	s.pod(t, "more", isReady)
}

// move stops the server, if it runs, and copies its state.
func (s *suite) move(t *testing.T, from, to string) {
	t.Helper()
	select {
	case <-s.Server().Done():
	default:
		if err := s.Stop(stopTimeout); err != nil {
			t.Fatal(err)
		}
	}
	out, err := s.Clusterd(within(t, podTimeout), nil, "datastore", "migrate", "--from="+from, "--to="+to)
	if err != nil {
		t.Fatal(err)
	}
	wants(t, out, "copied and compared")
	if strings.Contains(out, databases.Password) || strings.Count(out, "\n") != 1 {
		t.Errorf("not one line without the password:\n%s", out)
	}
}

// cannot expects a migration to end with the exit status, and to say why without showing a password.
func (s *suite) cannot(t *testing.T, status int, words []string, args ...string) {
	t.Helper()
	_, err := s.Clusterd(within(t, podTimeout), nil, append([]string{"datastore", "migrate"}, args...)...)
	if cluster.ExitCode(err) != status {
		t.Errorf("%q: exit status %d (%v), want %d", args, cluster.ExitCode(err), err, status)
		return
	}
	_, said, _ := strings.Cut(err.Error(), "exit status")
	wants(t, said, words...)
	if strings.Contains(said, databases.Password) {
		t.Errorf("the password is shown: %s", said)
	}
}

// asBefore looks for what was there before the move, with the pod's container not touched.
func (s *suite) asBefore(t *testing.T, before *corev1.Pod) {
	t.Helper()
	eventually(t, podTimeout, func(ctx context.Context) string {
		kept, err := s.client.CoreV1().ConfigMaps("default").Get(ctx, "kept", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if kept.Data["a"] != "b" {
			return "the ConfigMap holds something else"
		}
		return ""
	})
	now := s.pod(t, before.Name, isReady)
	was, is := before.Status.ContainerStatuses[0], now.Status.ContainerStatuses[0]
	if now.UID != before.UID || is.ContainerID != was.ContainerID || is.RestartCount != was.RestartCount {
		t.Errorf("the pod was touched: %s", summary(now))
	}
}
