// Package kubeapi is a small Kubernetes API in memory, for tests of what talks
// to one over HTTP: objects as JSON, lists, watches, server-side apply as a
// merge, and discovery. It knows nothing of admission, defaults or validation;
// what depends on those is tested against the real API server.
package kubeapi

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Object is one stored object, as JSON.
type Object = map[string]any

// Server is the API. Its methods may be called from any goroutine.
type Server struct {
	http *httptest.Server

	mu       sync.Mutex
	revision int
	objects  map[string]Object
	kinds    []metav1.APIResource
	changed  chan struct{} // closed and replaced at each event
	events   []event
	refuse   func(*http.Request) *metav1.Status
	writes   []string
}

// event is one change, for watches.
type event struct {
	at     target
	kind   string
	object Object
}

// New starts an API with the namespaces default and kube-system, and stops it
// with the test.
func New(tb testing.TB) *Server {
	s := &Server{objects: map[string]Object{}, changed: make(chan struct{})}
	s.http = httptest.NewServer(s)
	tb.Cleanup(func() {
		s.http.CloseClientConnections()
		s.http.Close()
	})
	s.Define("", "v1", "Namespace", "namespaces", false)
	s.Define("", "v1", "ConfigMap", "configmaps", true)
	for _, name := range []string{"default", "kube-system"} {
		s.Put("/api/v1/namespaces/"+name, Object{"apiVersion": "v1", "kind": "Namespace", "metadata": Object{"name": name}})
	}
	return s
}

// Config is a client configuration for the API.
func (s *Server) Config() *rest.Config {
	return &rest.Config{Host: s.http.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
}

// Define makes the API serve a kind, and discovery tell of it.
func (s *Server) Define(group, version, kind, plural string, namespaced bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds = append(s.kinds, metav1.APIResource{
		Group: group, Version: version, Kind: kind, Name: plural, Namespaced: namespaced,
		Verbs: metav1.Verbs{"get", "list", "watch", "create", "update", "patch", "delete"},
	})
}

// Undefine makes the API no longer serve a kind. Its objects stay.
func (s *Server) Undefine(group, kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds = slices.DeleteFunc(s.kinds, func(k metav1.APIResource) bool { return k.Group == group && k.Kind == kind })
}

// Put stores an object, given as anything that marshals to it.
func (s *Server) Put(path string, object any) {
	b, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	var o Object
	if err := json.Unmarshal(b, &o); err != nil {
		panic(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store(parse(path), o)
}

// Delete removes the object at path.
func (s *Server) Delete(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(parse(path))
}

// Get returns the object at path, nil when there is none.
func (s *Server) Get(path string) Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[path]
}

// Paths lists where objects are, in order.
func (s *Server) Paths() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.objects))
}

// Writes lists the requests so far that changed something, as METHOD PATH.
func (s *Server) Writes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.writes)
}

// Refuse makes the API answer requests with the status that f returns, if any.
func (s *Server) Refuse(f func(*http.Request) *metav1.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = f
}

// store saves o and tells watchers. The lock is held.
func (s *Server) store(t target, o Object) {
	s.revision++
	meta, _ := o["metadata"].(Object)
	if meta == nil {
		meta = Object{}
		o["metadata"] = meta
	}
	meta["resourceVersion"] = strconv.Itoa(s.revision)
	kind := "ADDED"
	if _, known := s.objects[t.path]; known {
		kind = "MODIFIED"
	} else {
		meta["uid"] = "uid-" + strconv.Itoa(s.revision)
	}
	s.objects[t.path] = o
	s.emit(event{t, kind, o})
}

// remove deletes what is at t and tells watchers. The lock is held.
func (s *Server) remove(t target) {
	if o, known := s.objects[t.path]; known {
		s.revision++
		delete(s.objects, t.path)
		s.emit(event{t, "DELETED", o})
	}
}

func (s *Server) emit(e event) {
	s.events = append(s.events, e)
	close(s.changed)
	s.changed = make(chan struct{})
}

// target is what a request path names.
type target struct {
	path                                    string
	group, version, namespace, plural, name string
	only                                    string // of a collection: the one name that a field selector asks for
}

// parse splits /api/v1/... and /apis/GROUP/VERSION/... paths.
func parse(path string) target {
	t := target{path: path}
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if parts[0] == "api" {
		parts = slices.Insert(parts, 1, "")
	}
	parts = append(parts, "", "", "", "", "", "")
	t.group, t.version = parts[1], parts[2]
	rest := parts[3:]
	if rest[0] == "namespaces" && rest[2] != "" {
		t.namespace, rest = rest[1], rest[2:]
	}
	t.plural, t.name = rest[0], rest[1]
	return t
}

// in reports whether t is an object of the collection c.
func (t target) in(c target) bool {
	return t.group == c.group && t.version == c.version && t.plural == c.plural &&
		(c.namespace == "" || c.namespace == t.namespace) && (c.only == "" || c.only == t.name)
}
