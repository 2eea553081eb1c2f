package kubeapi

import (
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// ServeHTTP answers one API request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t := parse(r.URL.Path)
	if only, named := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name="); named {
		t.only = only
	}
	if r.Method == http.MethodGet && t.name == "" && r.URL.Query().Get("watch") != "" {
		s.watch(w, r, t)
		return
	}
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	code, answer := s.answer(r, t, body)
	s.mu.Unlock()
	reply(w, code, answer)
}

func reply(w http.ResponseWriter, code int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer)
}

func status(code int, reason metav1.StatusReason, message string) (int, any) {
	return code, metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	}
}

func notFound(message string) (int, any) {
	return status(http.StatusNotFound, metav1.StatusReasonNotFound, message+" not found")
}

// answer computes the response. The lock is held.
func (s *Server) answer(r *http.Request, t target, body []byte) (int, any) {
	if s.refuse != nil {
		if st := s.refuse(r); st != nil {
			return int(st.Code), st
		}
	}
	if t.plural == "" {
		return s.discover(t)
	}
	kind := s.kind(t)
	if kind == nil {
		return status(http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
	}
	if r.Method == http.MethodGet {
		return s.read(t, kind.Kind)
	}
	if code, answer := s.write(r, t, body); answer != nil {
		return code, answer
	}
	return http.StatusOK, s.objects[t.path]
}

func (s *Server) kind(t target) *metav1.APIResource {
	for i, k := range s.kinds {
		if k.Group == t.group && k.Version == t.version && k.Name == t.plural {
			return &s.kinds[i]
		}
	}
	return nil
}

func (s *Server) read(t target, kind string) (int, any) {
	if t.name != "" {
		if o := s.objects[t.path]; o != nil {
			return http.StatusOK, o
		}
		return notFound(t.plural + " " + t.name)
	}
	items := []Object{}
	for path, o := range s.objects {
		if parse(path).in(t) {
			items = append(items, o)
		}
	}
	return http.StatusOK, Object{
		"apiVersion": groupVersion(t.group, t.version), "kind": kind + "List",
		"metadata": Object{"resourceVersion": strconv.Itoa(s.revision)}, "items": items,
	}
}

// write changes the object at t; it returns no answer when the object is the answer.
func (s *Server) write(r *http.Request, t target, body []byte) (int, any) {
	if t.namespace != "" && s.objects["/api/v1/namespaces/"+t.namespace] == nil {
		return notFound("namespaces " + t.namespace)
	}
	var o Object
	if err := yaml.Unmarshal(body, &o); err != nil {
		return status(http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
	}
	if r.Method == http.MethodPost {
		meta, _ := o["metadata"].(Object)
		name, _ := meta["name"].(string)
		t = parse(t.path + "/" + name)
	}
	have := s.objects[t.path]
	switch {
	case r.Method == http.MethodPost && have != nil:
		return status(http.StatusConflict, metav1.StatusReasonAlreadyExists, t.name+" already exists")
	case (r.Method == http.MethodDelete || r.Method == http.MethodPut) && have == nil:
		return notFound(t.plural + " " + t.name)
	case r.Method == http.MethodDelete:
		s.remove(t)
		s.writes = append(s.writes, r.Method+" "+t.path)
		return http.StatusOK, metav1.Status{Status: metav1.StatusSuccess}
	case r.Method == http.MethodPatch:
		o = merge(have, o).(Object)
	}
	if !reflect.DeepEqual(have, o) {
		s.writes = append(s.writes, r.Method+" "+t.path)
		s.store(t, o)
	}
	return http.StatusOK, s.objects[t.path]
}

// merge lays b over a copy of a; lists are replaced.
func merge(a, b any) any {
	over, isMap := b.(Object)
	under, wasMap := a.(Object)
	if !isMap {
		return b
	}
	out := Object{}
	if wasMap {
		for k, v := range under {
			out[k] = v
		}
	}
	for k, v := range over {
		out[k] = merge(out[k], v)
	}
	return out
}

func groupVersion(group, version string) string {
	if group == "" {
		return version
	}
	return group + "/" + version
}

// discover answers /api, /apis and the lists of a group's resources.
func (s *Server) discover(t target) (int, any) {
	if t.version == "" && t.path == "/api" {
		return http.StatusOK, metav1.APIVersions{Versions: []string{"v1"}}
	}
	groups := metav1.APIGroupList{}
	list := metav1.APIResourceList{GroupVersion: groupVersion(t.group, t.version)}
	seen := map[string]bool{"": true}
	for _, k := range s.kinds {
		if k.Group == t.group && k.Version == t.version {
			list.APIResources = append(list.APIResources, k)
		}
		if seen[k.Group] {
			continue
		}
		seen[k.Group] = true
		v := metav1.GroupVersionForDiscovery{GroupVersion: groupVersion(k.Group, k.Version), Version: k.Version}
		groups.Groups = append(groups.Groups, metav1.APIGroup{Name: k.Group, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v})
	}
	if t.path == "/apis" {
		return http.StatusOK, groups
	}
	return http.StatusOK, list
}

// watch streams the collection's events, and first its objects when asked to.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, t target) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	enc := json.NewEncoder(w)
	next := s.begin(enc, r, t)
	for {
		w.(http.Flusher).Flush()
		s.mu.Lock()
		changed, news := s.changed, s.events[next:]
		next = len(s.events)
		s.mu.Unlock()
		for _, e := range news {
			if e.at.in(t) {
				_ = enc.Encode(Object{"type": e.kind, "object": e.object})
			}
		}
		if len(news) > 0 {
			continue
		}
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

// begin returns the index of the first event that the watch has not seen.
func (s *Server) begin(enc *json.Encoder, r *http.Request, t target) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.URL.Query().Get("sendInitialEvents") != "true" {
		return s.since(r.URL.Query().Get("resourceVersion"))
	}
	for path, o := range s.objects {
		if parse(path).in(t) {
			_ = enc.Encode(Object{"type": "ADDED", "object": o})
		}
	}
	kind := ""
	if k := s.kind(t); k != nil {
		kind = k.Kind
	}
	_ = enc.Encode(Object{"type": "BOOKMARK", "object": Object{
		"apiVersion": groupVersion(t.group, t.version), "kind": kind,
		"metadata": Object{
			"resourceVersion": strconv.Itoa(s.revision),
			"annotations":     Object{metav1.InitialEventsAnnotationKey: "true"},
		},
	}})
	return len(s.events)
}

// since returns the index of the first event after a revision; each revision
// has one event.
func (s *Server) since(revision string) int {
	n, err := strconv.Atoi(revision)
	if err != nil || n > len(s.events) {
		return len(s.events)
	}
	return n
}
