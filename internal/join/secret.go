package join

import (
	"crypto/subtle"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstrap "k8s.io/cluster-bootstrap/token/util"
)

// The labels and annotations of the tokens' Secrets.
const (
	// TokenLabel marks the Secrets of tokens that let nodes join; its value is TokenCreated or TokenServer.
	TokenLabel   = "clusterd.io/join-token"
	TokenCreated = "created" // by clusterd token create
	TokenServer  = "server"  // follows the server's own secret

	replaces = "clusterd.io/replaces-nodes"
)

// Grant is what a token is good for. The zero value is a token that does not end.
type Grant struct {
	Description string
	Expires     time.Time // zero: never
	// Replaces are the names of nodes whose place another machine may take with the token.
	Replaces []string
}

// Secret is the object by which the API server knows the token.
func (g Grant) Secret(t Token, origin string) *corev1.Secret {
	data := map[string]string{
		bootstrapapi.BootstrapTokenIDKey:               t.ID,
		bootstrapapi.BootstrapTokenSecretKey:           t.Secret,
		bootstrapapi.BootstrapTokenUsageAuthentication: "true",
		bootstrapapi.BootstrapTokenExtraGroupsKey:      BootstrapGroup,
	}
	if g.Description != "" {
		data[bootstrapapi.BootstrapTokenDescriptionKey] = g.Description
	}
	if !g.Expires.IsZero() {
		data[bootstrapapi.BootstrapTokenExpirationKey] = g.Expires.UTC().Format(time.RFC3339)
	}
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name:      SecretName(t.ID),
			Namespace: metav1.NamespaceSystem,
			Labels:    map[string]string{TokenLabel: origin},
		},
		Type: bootstrapapi.SecretTypeBootstrapToken,
		Data: map[string][]byte{},
	}
	for k, v := range data {
		s.Data[k] = []byte(v)
	}
	if len(g.Replaces) > 0 {
		s.Annotations = map[string]string{replaces: strings.Join(g.Replaces, ",")}
	}
	return s
}

// SecretName is the name of the Secret, in kube-system, of the token with an ID.
func SecretName(id string) string { return bootstrapapi.BootstrapTokenSecretPrefix + id }

// GrantOf reads a token's Secret.
func GrantOf(s *corev1.Secret) (Grant, error) {
	g := Grant{Description: string(s.Data[bootstrapapi.BootstrapTokenDescriptionKey])}
	if names := s.Annotations[replaces]; names != "" {
		g.Replaces = strings.Split(names, ",")
	}
	if text := string(s.Data[bootstrapapi.BootstrapTokenExpirationKey]); text != "" {
		var err error
		if g.Expires, err = time.Parse(time.RFC3339, text); err != nil {
			return Grant{}, fmt.Errorf("secret %s: read when the token expires: %w", s.Name, err)
		}
	}
	return g, nil
}

// Expired is whether the token has ended.
func (g Grant) Expired(now time.Time) bool { return !g.Expires.IsZero() && !now.Before(g.Expires) }

// Check says what is wrong with a token that is shown as the bearer, given its Secret, or nil when there is none. An empty
// string is a good token.
func Check(bearer string, secret *corev1.Secret, now time.Time) string {
	id, shown, _ := strings.Cut(bearer, ".")
	switch {
	case !bootstrap.IsValidBootstrapToken(bearer):
		return "is mistyped: it has not the form of a token"
	case secret == nil:
		return fmt.Sprintf("with the ID %s is not known here: it was deleted or rotated, or is mistyped; make one with clusterd token create on a server", id)
	case subtle.ConstantTimeCompare(secret.Data[bootstrapapi.BootstrapTokenSecretKey], []byte(shown)) != 1:
		return fmt.Sprintf("with the ID %s is mistyped: its secret part is another one; copy the whole of it", id)
	}
	g, err := GrantOf(secret)
	switch {
	case err != nil:
		return fmt.Sprintf("with the ID %s is damaged: delete it with clusterd token delete %s and make another one", id, id)
	case g.Expired(now):
		return fmt.Sprintf("with the ID %s has expired at %s: make one with clusterd token create on a server", id, g.Expires.UTC().Format(time.RFC3339))
	}
	return ""
}
