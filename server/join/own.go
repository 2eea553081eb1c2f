package join

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/clusterd/clusterd/internal/lifecycle"
)

// ownRetry is how often the API is asked again.
const ownRetry = 250 * time.Millisecond

// NewOwnName makes the component that claims the name of the node in this process, as joined nodes do for theirs, and is
// ready when it has it. Another machine's name is an error. key is what the machine is known by. Without a node it does nothing.
func NewOwnName(config *rest.Config, node string, key func() (string, error), log *slog.Logger) lifecycle.Component {
	return lifecycle.Task("node name", func(ctx context.Context) error {
		if node == "" {
			return nil
		}
		client, err := clientset.NewForConfig(config)
		if err != nil {
			return fmt.Errorf("make the client for the node's name: %w", err)
		}
		own, err := key()
		if err != nil {
			return err
		}
		i := identities{client: client, now: time.Now}
		for {
			refusal, err := i.claimOwn(ctx, node, own)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case refusal != "":
				return errors.New(refusal)
			case err == nil:
				return nil
			}
			log.Debug("the node's name is not claimed yet", "error", err)
			pause(ctx, ownRetry)
		}
	})
}

// claimOwn gives the name to this server's machine. One that nobody has claimed is free: the Node of that name, if there is
// one, is this server's, from before servers claimed theirs.
func (i identities) claimOwn(ctx context.Context, node, key string) (refusal string, _ error) {
	have, missing, err := i.load(ctx)
	if err != nil {
		return "", err
	}
	known, found := read(have, node)
	if found && known.Key == key {
		return "", nil
	}
	if found {
		_, err := i.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return "", fmt.Errorf("look for node %s: %w", node, err)
		}
		if err == nil || i.now().Sub(known.Since) < settling {
			return fmt.Sprintf("another machine has the node name %[1]s: choose another one with --node-name, or, if this machine is to take its place, "+
				"delete the node (clusterd kubectl delete node %[1]s)", node), nil
		}
	}
	return "", i.store(ctx, have, missing, node, key)
}

// load reads who has which name.
func (i identities) load(ctx context.Context) (have *corev1.ConfigMap, missing bool, err error) {
	have, err = i.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, identitiesName, metav1.GetOptions{})
	if missing = apierrors.IsNotFound(err); missing {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: identitiesName}}, true, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read the nodes' identities: %w", err)
	}
	return have, false, nil
}
