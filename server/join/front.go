package join

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	bootstrap "k8s.io/cluster-bootstrap/token/util"

	"github.com/clusterd/clusterd/internal/join"
)

// Front answers join.Path, and leaves everything else to next. It is there because the API server's own answer to a token
// that is not good does not say what is wrong with it. Who guesses learns nothing that helps: the IDs of tokens are no
// secret, and whether one has expired is said only to those who show its secret.
func (j *Joining) Front(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != join.Path {
			next.ServeHTTP(w, r)
			return
		}
		j.tell(w, r)
	})
}

func (j *Joining) tell(w http.ResponseWriter, r *http.Request) {
	bearer, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	id, _, _ := strings.Cut(bearer, ".")
	var secret *corev1.Secret
	if bootstrap.IsValidBootstrapToken(bearer) {
		var err error
		secret, err = j.client.CoreV1().Secrets(metav1.NamespaceSystem).Get(r.Context(), join.SecretName(id), metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			http.Error(w, "the server cannot look for the token at present", http.StatusServiceUnavailable)
			return
		}
		if err != nil {
			secret = nil
		}
	}
	if reason := join.Check(bearer, secret, time.Now()); reason != "" {
		answer(w, http.StatusUnauthorized, join.Refusal{Reason: reason})
		return
	}
	info, err := j.info()
	if err != nil {
		http.Error(w, "the server cannot describe the cluster at present", http.StatusServiceUnavailable)
		return
	}
	answer(w, http.StatusOK, info)
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client has gone
}
