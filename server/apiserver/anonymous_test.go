package apiserver

import (
	"net/http"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

func TestAnonymousReachesHealthOnly(t *testing.T) {
	as := func(name string) authenticator.Request {
		return limitAnonymous(authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			return &authenticator.Response{User: &user.DefaultInfo{Name: name}}, true, nil
		}))
	}
	for path, open := range map[string]bool{
		"/healthz": true, "/livez": true, "/readyz": true, "/readyz/etcd": true,
		"/version": false, "/healthzz": false, "/": false, "/api": false, "/openapi/v2": false, "/metrics": false,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://x"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok, err := as(user.Anonymous).AuthenticateRequest(r); ok != open || err != nil {
			t.Errorf("anonymous at %s: let in %t, want %t (error %v)", path, ok, open, err)
		}
		if _, ok, err := as("somebody").AuthenticateRequest(r); !ok || err != nil {
			t.Errorf("a user at %s is turned away (error %v)", path, err)
		}
	}
}

func TestUsersOwnAnonymousConfiguration(t *testing.T) {
	for arg, want := range map[string]bool{"anonymous-auth=true": true, "--authentication-config=f": true, "audit-log-path=-": false} {
		s := &Server{cfg: Config{Args: []string{arg}}}
		if got := s.anonymousConfigured(); got != want {
			t.Errorf("%s: configured %t, want %t", arg, got, want)
		}
	}
}
