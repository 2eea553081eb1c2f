// Package cluster runs the real clusterd executable in a lab node, for tests and measurements that see it only from
// outside: by its command line, its files, its log and its API.
package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/testkit/lab"
)

const (
	// pollInterval is how often a state that is waited for is looked at.
	pollInterval = 50 * time.Millisecond
	// logFile is the server's log, as the node sees it.
	logFile = "/var/log/clusterd.log"
)

// Cluster is one clusterd in one node. Its fields are set before the first Start.
type Cluster struct {
	// Node is where it runs, Binary the executable.
	Node   *lab.Node
	Binary string
	// Role is the command, server unless it says otherwise. Args follow it. Env is added to its environment, as KEY=VALUE.
	Role      string
	Args, Env []string

	server *lab.Process
	began  time.Time
}

// Start runs the role in the background and waits for nothing.
func (c *Cluster) Start() error {
	log, err := os.OpenFile(c.Node.Path(logFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open the server's log: %w", err)
	}
	defer log.Close()
	c.began = time.Now()
	c.server, err = c.Node.Start(log, c.Env, append([]string{c.Binary, c.Command()}, c.Args...)...)
	return err
}

// Command is the role's.
func (c *Cluster) Command() string {
	if c.Role == "" {
		return "server"
	}
	return c.Role
}

// Began is when Start was last called.
func (c *Cluster) Began() time.Time { return c.began }

// Server is the running process; nil before the first Start.
func (c *Cluster) Server() *lab.Process { return c.server }

// Stop ends the server as an administrator would. The error is the process's own, or says that the time was over.
func (c *Cluster) Stop(timeout time.Duration) error {
	if err := c.server.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop the server: %w", err)
	}
	return c.server.Wait(timeout)
}

// Kill ends the server as a power cut would, leaving pods as they are.
func (c *Cluster) Kill() error { return c.server.Kill() }

// Log is everything that the server has printed in this node.
func (c *Cluster) Log() string {
	b, err := os.ReadFile(c.Node.Path(logFile))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// RESTConfig is the administrator's, from the kubeconfig that the server wrote; it connects inside the node.
func (c *Cluster) RESTConfig() (*rest.Config, error) { return Client(c.Node, datadir.Kubeconfig) }

// Client reads a kubeconfig in a node for use from outside it, without a limit on requests. The files that it names are
// read in the node as well.
func Client(node *lab.Node, kubeconfig string) (*rest.Config, error) {
	loaded, err := clientcmd.LoadFromFile(node.Path(kubeconfig))
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	for _, u := range loaded.AuthInfos {
		u.ClientCertificate, u.ClientKey = inNode(node, u.ClientCertificate), inNode(node, u.ClientKey)
	}
	for _, s := range loaded.Clusters {
		s.CertificateAuthority = inNode(node, s.CertificateAuthority)
	}
	config, err := clientcmd.NewDefaultClientConfig(*loaded, nil).ClientConfig()
	if err != nil {
		return nil, err
	}
	config.Dial = node.Network().DialContext
	config.QPS = -1
	return config, nil
}

func inNode(node *lab.Node, path string) string {
	if path == "" {
		return ""
	}
	return node.Path(path)
}

// Await polls until done says so, the server ends, or ctx does. The error then names what was waited for.
func (c *Cluster) Await(ctx context.Context, what string, done func(context.Context) bool) error {
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		select {
		case <-c.server.Done():
			return false, fmt.Errorf("the server ended: %w", errors.Join(c.server.Err(), errors.New(tail(c.Log(), 20))))
		default:
			return done(ctx), nil
		}
	})
	if err != nil {
		return fmt.Errorf("wait for %s: %w", what, err)
	}
	return nil
}

// Client waits until the API server is ready and returns the administrator's client.
func (c *Cluster) Client(ctx context.Context) (*kubernetes.Clientset, error) {
	var client *kubernetes.Clientset
	err := c.Await(ctx, "the API", func(ctx context.Context) bool {
		config, err := c.RESTConfig()
		if err != nil {
			return false
		}
		client, err = kubernetes.NewForConfig(config)
		return err == nil && client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() == nil
	})
	return client, err
}

// NodeReady says whether the node has reported itself Ready since the given time. After a second start the store still
// holds the last report of the first, so the condition alone says nothing.
func NodeReady(ctx context.Context, client kubernetes.Interface, name string, since time.Time) bool {
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue && condition.LastHeartbeatTime.Unix() >= since.Unix()
		}
	}
	return false
}

// Ready waits until the API answers and the node has reported itself Ready since the last Start.
func (c *Cluster) Ready(ctx context.Context) (*kubernetes.Clientset, error) {
	client, err := c.Client(ctx)
	if err != nil {
		return nil, err
	}
	return client, c.Await(ctx, "the node to be Ready", func(ctx context.Context) bool {
		return NodeReady(ctx, client, c.Node.Name(), c.began)
	})
}

// Clusterd runs another command of the executable in the node. The output is that of its standard output; the error has
// what it printed on the other one.
func (c *Cluster) Clusterd(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	command := c.Node.Command(ctx, append([]string{c.Binary}, args...)...)
	var out, problems bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = stdin, &out, &problems
	if err := command.Run(); err != nil {
		return out.String(), fmt.Errorf("clusterd %q: %w: %s", args, err, bytes.TrimSpace(problems.Bytes()))
	}
	return out.String(), nil
}

// ExitCode is the exit status in an error of Stop, Clusterd or a Process; 0 for nil and -1 when there is none.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return -1
}

// Tail is the last n lines of the server's log.
func (c *Cluster) Tail(n int) string { return tail(c.Log(), n) }

func tail(s string, n int) string {
	lines := bytes.Split(bytes.TrimRight([]byte(s), "\n"), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-n):], []byte("\n")))
}

// Put writes a file in the node, with the directories above it.
func (c *Cluster) Put(inside string, data []byte) error {
	path := c.Node.Path(inside)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}
