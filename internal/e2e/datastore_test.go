//go:build e2e

package e2e

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterd/clusterd/internal/testkit/databases"
	"github.com/clusterd/clusterd/internal/testkit/image"
	"github.com/clusterd/clusterd/internal/testkit/lab"
)

// machine lets databases run in a lab node.
type machine struct{ node *lab.Node }

func (m machine) Run(args ...string) (string, error) {
	return m.node.Output(context.Background(), args...)
}

func (m machine) Start(log string, args ...string) (databases.Process, error) {
	out, err := os.OpenFile(m.node.Path(log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	return m.node.Start(out, nil, args...)
}

func (m machine) Path(inside string) string { return m.node.Path(inside) }

func (m machine) Dial(address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return m.node.Network().DialContext(ctx, "tcp", address)
}

// TestDatastore runs a cluster on databases of its node, the etcd with TLS, and takes them away and gives them back below it.
func TestDatastore(t *testing.T) {
	for _, row := range []struct {
		name  string
		start func(testing.TB, databases.Machine, int) *databases.Server
		port  int
	}{
		{"postgres", databases.Postgres, 5432},
		{"mariadb", databases.MariaDB, 3306},
		{"nats", databases.NATS, 4222},
		{"etcd", nil, 2379},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newCluster(t, row.name)
			t.Parallel()
			put(t, c, dirs.Images()+"/tools.tar", image.Bytes(t, tools))
			config, db := "", (*databases.Server)(nil)
			if row.start != nil {
				db = row.start(t, machine{c.Node}, row.port)
			} else {
				tls := databases.NewCertificates(t, machine{c.Node})
				db = databases.SecureEtcd(t, machine{c.Node}, row.port, tls)
				config = "datastore-cafile: " + tls.CA + "\ndatastore-certfile: " + tls.ClientCert + "\ndatastore-keyfile: " + tls.ClientKey + "\n"
			}
			put(t, c, "/etc/clusterd/config.yaml", []byte(config+"datastore-endpoint: '"+db.Endpoint+"'\n"))
			s := start(t, c)
			first := s.runs(t, newPod("first", idle()))
			s.testLoss(t, db)
			again := s.pod(t, "first", isReady)
			if again.UID != first.UID || again.Status.ContainerStatuses[0].RestartCount != 0 {
				t.Errorf("the pod from before was touched: %s", summary(again))
			}
			if err := s.Stop(stopTimeout); err != nil {
				t.Fatalf("stop: %v", err)
			}
			s.start(t)
			s.pod(t, "second", isReady)
			if text := s.Log(); strings.Contains(text, databases.Password) {
				t.Error("the log has the password")
			}
			if _, err := os.Stat(s.Node.Path(dirs.DB())); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the local datastore: %v, want none", err)
			}
		})
	}
}

// testLoss kills the database, wants errors while it is away, and a pod after it is back, of the same server.
func (s *suite) testLoss(t *testing.T, db *databases.Server) {
	maps := s.client.CoreV1().ConfigMaps("default")
	lost := func(ctx context.Context, name string) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	if err := lost(t.Context(), "before"); err != nil {
		t.Fatal(err)
	}
	db.Kill(t)
	for range 2 {
		if lost(t.Context(), "never") == nil {
			t.Fatal("a write without a database is acknowledged")
		}
	}
	db.Start(t)
	eventually(t, podTimeout, func(ctx context.Context) string {
		if err := lost(ctx, "after"); err != nil {
			return err.Error()
		}
		return ""
	})
	if _, err := maps.Get(t.Context(), "before", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	s.runs(t, newPod("second", idle()))
	select {
	case <-s.Server().Done():
		t.Fatalf("the server has ended: %v", s.Server().Err())
	default:
	}
}
