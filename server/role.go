package server

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes"

	"github.com/clusterd/clusterd/internal/inproc"
	"github.com/clusterd/clusterd/internal/lifecycle"
	"github.com/clusterd/clusterd/internal/nodewatch"
)

// roleLabel marks a control-plane node. A kubelet may not put it on its own Node, so the server does.
const roleLabel = "node-role.kubernetes.io/control-plane"

// newRole labels this machine's Node when it has registered.
func newRole(node string, t *inproc.Transport) lifecycle.Component {
	return lifecycle.Func("node role", func(ctx context.Context, ready func()) error {
		ready() // the label is for people; nothing waits for it
		c, err := clientset.NewForConfig(t.Config(Admin(), "clusterd/role"))
		if err != nil {
			return fmt.Errorf("make the client of the node role: %w", err)
		}
		for ctx.Err() == nil && label(ctx, c, node) != nil {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
		<-ctx.Done()
		return nil
	})
}

func label(ctx context.Context, c clientset.Interface, node string) error {
	n, err := nodewatch.Until(ctx, c, node, func(*v1.Node) bool { return true })
	if err != nil {
		return err
	}
	if _, ok := n.Labels[roleLabel]; ok {
		return nil
	}
	patch := []byte(`{"metadata":{"labels":{"` + roleLabel + `":"true"}}}`)
	_, err = c.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
