package apiserver

import (
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// anonymousConfigured reports whether the user has said who may come without credentials.
func (s *Server) anonymousConfigured() bool {
	for _, a := range s.cfg.Args {
		key, _, _ := strings.Cut(strings.TrimPrefix(a, "--"), "=")
		if key == "anonymous-auth" || key == "authentication-config" {
			return true
		}
	}
	return false
}

// healthPaths are open to everyone: load balancers and probes have no credentials.
var healthPaths = []string{"/healthz", "/livez", "/readyz"}

// limitAnonymous turns requests without credentials away (401) unless they ask for a health endpoint.
func limitAnonymous(next authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		res, ok, err := next.AuthenticateRequest(r)
		if ok && res.User.GetName() == user.Anonymous && !isHealthPath(r.URL.Path) {
			return nil, false, nil
		}
		return res, ok, err
	})
}

func isHealthPath(path string) bool {
	for _, p := range healthPaths {
		if path == p || strings.HasPrefix(path, p+"/") {
			return true
		}
	}
	return false
}
