package join

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"

	"github.com/clusterd/clusterd/internal/join"
)

// identitiesName is the ConfigMap in kube-system that says which key each node has.
const identitiesName = "clusterd-node-identities"

// settling is how long a name belongs to the machine that was let in with it, while there is no Node of that name yet. A name
// whose Node is deleted is free at once.
const settling = 10 * time.Minute

// identity is a machine that was let in.
type identity struct {
	Key   string    `json:"key"` // the fingerprint of its public key
	Since time.Time `json:"since"`
}

// identities knows which machine has which node's name.
type identities struct {
	client clientset.Interface
	now    func() time.Time
}

// claim gives a node's name to the machine with the key, or says in a sentence why it cannot have it. An error is one of
// the API; asking again may help.
func (i identities) claim(ctx context.Context, node string, r request) (refusal string, _ error) {
	have, missing, err := i.load(ctx)
	if err != nil {
		return "", err
	}
	known, found := read(have, node)
	if found && known.Key == r.key() {
		return "", nil
	}
	if refusal, err = i.refuse(ctx, node, r, known); err != nil || refusal != "" {
		return refusal, err
	}
	return "", i.store(ctx, have, missing, node, r.key())
}

// store notes that the machine with the key has the name.
func (i identities) store(ctx context.Context, have *corev1.ConfigMap, missing bool, node, key string) error {
	data, err := json.Marshal(identity{Key: key, Since: i.now().UTC().Truncate(time.Second)})
	if err != nil {
		return fmt.Errorf("write the identity of node %s: %w", node, err)
	}
	if have.Data == nil {
		have.Data = map[string]string{}
	}
	have.Data[node] = string(data)
	maps := i.client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	if missing {
		_, err = maps.Create(ctx, have, metav1.CreateOptions{})
	} else {
		_, err = maps.Update(ctx, have, metav1.UpdateOptions{}) // fails if somebody else was faster
	}
	if err != nil {
		return fmt.Errorf("write the identity of node %s: %w", node, err)
	}
	return nil
}

// forget lets a node's name go.
func (i identities) forget(ctx context.Context, node string) error {
	maps := i.client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	have, err := maps.Get(ctx, identitiesName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && have.Data[node] == "" {
		return nil
	}
	if err == nil {
		delete(have.Data, node)
		_, err = maps.Update(ctx, have, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("forget the identity of node %s: %w", node, err)
	}
	return nil
}

// refuse says why the name, whose known owner if any has another key, is not to be had.
func (i identities) refuse(ctx context.Context, node string, r request, known identity) (string, error) {
	_, err := i.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	exists := err == nil
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("look for node %s: %w", node, err)
	}
	switch {
	case r.node != "" && known.Key == "":
		return "", nil // it has a certificate of that name, and its identity was lost
	case !exists && i.now().Sub(known.Since) >= settling:
		return "", nil
	case r.node != "":
		return fmt.Sprintf("the node %s has another key now: this machine was replaced", node), nil
	}
	if ok, err := i.mayReplace(ctx, node, r.tokenID); err != nil || ok {
		return "", err
	}
	return fmt.Sprintf("another machine has the node name %[1]s: choose another one with --node-name, or, if this machine is to take its place, "+
		"delete the node (clusterd kubectl delete node %[1]s) or use a token of clusterd token create --replace %[1]s", node), nil
}

func (i identities) mayReplace(ctx context.Context, node, tokenID string) (bool, error) {
	s, err := i.client.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, join.SecretName(tokenID), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the token %s: %w", tokenID, err)
	}
	g, err := join.GrantOf(s)
	return err == nil && slices.Contains(g.Replaces, node), nil
}

func read(m *corev1.ConfigMap, node string) (identity, bool) {
	var i identity
	if err := json.Unmarshal([]byte(m.Data[node]), &i); err != nil {
		return identity{}, false
	}
	return i, true
}
