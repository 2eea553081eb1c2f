// Package inproc lets the parts of one process call the API server without a socket.
//
// A Transport is an http.RoundTripper that hands each request straight to the API server's handler. The caller's identity
// travels in the request's context, where only code of this process can put it, and Authenticator reads it in front of the
// server's own authenticators. Authorization and admission stay in force: every component acts as the user it is.
//
// What it does not carry are connection upgrades (exec, attach, port-forward): their clients use the TLS port.
package inproc

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
)

// ErrNotServing is the error of a request made before the API server's handler is set.
var ErrNotServing = errors.New("the API server is not serving yet")

// Transport reaches the API server's handler. The zero value is ready for use; SetHandler binds it.
type Transport struct {
	handler atomic.Pointer[http.Handler]
}

// SetHandler makes h the target of all later requests.
func (t *Transport) SetHandler(h http.Handler) { t.handler.Store(&h) }

// Config returns a client configuration that acts as u: protobuf, with no client-side limit on the request rate.
func (t *Transport) Config(u user.Info, agent string) *rest.Config {
	return &rest.Config{
		Host:               "http://in-process",
		Transport:          identified{t, u},
		QPS:                -1,
		DisableCompression: true,
		UserAgent:          agent,
		ContentConfig: rest.ContentConfig{
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
			ContentType:        "application/vnd.kubernetes.protobuf",
		},
	}
}

// User is an identity of the named user, authenticated, in the given groups.
func User(name string, groups ...string) user.Info {
	return &user.DefaultInfo{Name: name, Groups: append(groups, user.AllAuthenticated)}
}

// Node is the identity of the kubelet of the named node.
func Node(name string) user.Info { return User("system:node:"+name, user.NodesGroup) }

// ServiceAccount is the identity of a service account in kube-system.
func ServiceAccount(name string) user.Info {
	i := serviceaccount.UserInfo("kube-system", name, "")
	return User(i.GetName(), i.GetGroups()...)
}

type identityKey struct{}

// Authenticator accepts the requests that carry an identity of a Transport, and leaves all others to next.
func Authenticator(next authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		if u, ok := r.Context().Value(identityKey{}).(user.Info); ok {
			return &authenticator.Response{User: u}, true, nil
		}
		return next.AuthenticateRequest(r)
	})
}

// identified is a Transport with one user's identity.
type identified struct {
	t *Transport
	u user.Info
}

// RoundTrip serves r and returns once the handler has sent its headers; the body streams. The request's context ends the
// handler, as does closing the response's body. The handler does not see the values of the request's context: the caller
// may be a handler itself, and its audit record or user must not leak in.
func (i identified) RoundTrip(r *http.Request) (*http.Response, error) {
	h := i.t.handler.Load()
	if h == nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, ErrNotServing
	}
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), identityKey{}, i.u))
	w := newResponse(r, cancel)
	stop := context.AfterFunc(r.Context(), func() { // the reader sees why before the handler can make it look like an end
		w.body.abort(r.Context().Err())
		cancel()
	})
	go func() {
		defer stop()
		defer cancel()
		serve(*h, w, incoming(ctx, r))
	}()
	select {
	case <-w.started:
	case <-r.Context().Done():
	}
	if err := r.Context().Err(); err != nil {
		_ = w.body.Close()
		return nil, err
	}
	return w.result(), nil
}

// incoming is r as a server would have read it from a connection.
func incoming(ctx context.Context, r *http.Request) *http.Request {
	in := r.Clone(ctx)
	in.RequestURI = r.URL.RequestURI()
	in.RemoteAddr = "127.0.0.1:0"
	in.Proto, in.ProtoMajor, in.ProtoMinor = "HTTP/2.0", 2, 0
	if in.Host == "" {
		in.Host = r.URL.Host
	}
	if in.Body == nil {
		in.Body = http.NoBody
	}
	return in
}

// serve runs the handler. A handler that aborts by panicking leaves its reader an unexpected end, as a broken connection would.
func serve(h http.Handler, w *response, r *http.Request) {
	defer func() {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		if recover() != nil { // the handler's own recovery filter has logged it
			w.start(http.StatusInternalServerError)
			w.body.abort(io.ErrUnexpectedEOF)
			return
		}
		w.start(http.StatusOK)
		w.body.finish()
	}()
	h.ServeHTTP(w, r)
}
