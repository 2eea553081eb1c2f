package join

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
)

// Tokens lists the Secrets of all tokens that let nodes join, without those that have been over for longer than the
// given time, which it removes.
func Tokens(ctx context.Context, client clientset.Interface, forget time.Duration) ([]corev1.Secret, error) {
	secrets := client.CoreV1().Secrets(metav1.NamespaceSystem)
	list, err := secrets.List(ctx, metav1.ListOptions{LabelSelector: TokenLabel})
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	var kept []corev1.Secret
	for _, s := range list.Items {
		if g, err := GrantOf(&s); err == nil && g.Expired(time.Now().Add(-forget)) {
			if err := secrets.Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return nil, fmt.Errorf("remove the expired token in secret %s: %w", s.Name, err)
			}
			continue
		}
		kept = append(kept, s)
	}
	return kept, nil
}

// WriteServerToken makes t the token of the server's own secret, and takes back the one that was it before.
func WriteServerToken(ctx context.Context, client clientset.Interface, t Token) error {
	secrets := client.CoreV1().Secrets(metav1.NamespaceSystem)
	want := Grant{Description: "the server's own token"}.Secret(t, TokenServer)
	list, err := secrets.List(ctx, metav1.ListOptions{LabelSelector: TokenLabel + "=" + TokenServer})
	if err != nil {
		return fmt.Errorf("list the server's tokens: %w", err)
	}
	there := false
	for _, s := range list.Items {
		if s.Name == want.Name && Check(t.Bearer(), &s, time.Now()) == "" {
			there = true
			continue
		}
		if err := secrets.Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("take back the server's earlier token: %w", err)
		}
	}
	if there {
		return nil
	}
	_, err = secrets.Create(ctx, want, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // another server, or clusterd token rotate, was faster; or it is somebody else's
		if s, _ := secrets.Get(ctx, want.Name, metav1.GetOptions{}); s != nil && s.Labels[TokenLabel] == TokenServer && Check(t.Bearer(), s, time.Now()) == "" {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("make the server's token known: %w", err)
	}
	return nil
}
