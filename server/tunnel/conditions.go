package tunnel

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"

	"github.com/clusterd/clusterd/internal/tunnel"
)

// grace is how long a tunnel may be away before the Node says so: a node makes a lost one again within seconds, also when the
// server starts.
const grace = 15 * time.Second

// Joined knows the nodes that other processes run.
type Joined interface {
	// Joined are their Nodes with the condition of the tunnel.
	Joined() []*corev1.Node
	// Follow has f, which must not block, called with the name of each that comes. It has to be called before these are
	// followed.
	Follow(f func(node string))
}

// Conditions is the component that says in each joined Node whether it has a tunnel. It writes when that has changed.
type Conditions struct {
	tunnels *Tunnels
	nodes   Joined
	client  clientset.Interface
	queue   workqueue.TypedRateLimitingInterface[string]
	log     *slog.Logger
}

// NewConditions makes the component. The client is one that may write the status of all Nodes.
func NewConditions(t *Tunnels, nodes Joined, client clientset.Interface, log *slog.Logger) *Conditions {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	c := &Conditions{tunnels: t, nodes: nodes, client: client, queue: queue, log: log}
	look := func(node string) {
		if t.has(node) {
			queue.Add(node)
		} else {
			queue.AddAfter(node, grace)
		}
	}
	nodes.Follow(look)
	t.changed = look
	return c
}

// Name is the component's name.
func (c *Conditions) Name() string { return "tunnel conditions" }

// Run works until ctx ends. It is ready at once.
func (c *Conditions) Run(ctx context.Context, ready func()) error {
	stop := context.AfterFunc(ctx, c.queue.ShutDown)
	defer stop()
	ready()
	for {
		node, end := c.queue.Get()
		if end {
			return nil
		}
		err := c.write(ctx, node)
		if err == nil || apierrors.IsNotFound(err) {
			c.queue.Forget(node)
		} else {
			c.log.Debug("condition of the tunnel not written yet", "node", node, "error", err)
			c.queue.AddRateLimited(node)
		}
		c.queue.Done(node)
	}
}

// write brings a Node's condition up to date.
func (c *Conditions) write(ctx context.Context, node string) error {
	for _, n := range c.nodes.Joined() {
		if n.Name != node {
			continue
		}
		want := condition(c.tunnels.has(node), time.Now())
		if have := conditionOf(n); have != nil && have.Status == want.Status {
			return nil
		}
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{want}}})
		if err != nil {
			return fmt.Errorf("write the condition of node %s: %w", node, err)
		}
		_, err = c.client.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	}
	return nil
}

func conditionOf(n *corev1.Node) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == tunnel.Condition {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

func condition(has bool, now time.Time) corev1.NodeCondition {
	c := corev1.NodeCondition{
		Type: tunnel.Condition, Status: corev1.ConditionTrue, Reason: "NoTunnel",
		Message:           "the node holds no tunnel to the server: exec, logs and port-forward need a direct way to it",
		LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
	}
	if has {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "TunnelHeld", "the node holds a tunnel to the server"
	}
	return c
}
