package image

import (
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Registry is a read-only image registry, as an http.Handler.
type Registry struct {
	manifests, blobs map[string][]byte

	mu     sync.Mutex
	served []string
}

// NewRegistry serves the images under the paths that their names have after the registry's host.
func NewRegistry(images ...*Image) *Registry {
	r := &Registry{manifests: map[string][]byte{}, blobs: map[string][]byte{}}
	for _, i := range images {
		_, path, _ := strings.Cut(i.Name, "/")
		repository, tag := path, "latest"
		if at := strings.LastIndex(path, ":"); at > 0 {
			repository, tag = path[:at], path[at+1:]
		}
		r.manifests[repository+"/manifests/"+tag] = i.manifest
		r.manifests[repository+"/manifests/"+i.Digest()] = i.manifest
		for _, b := range [][]byte{i.layer, i.config} {
			r.blobs[repository+"/blobs/"+digest.FromBytes(b).String()] = b
		}
	}
	return r
}

// Served lists the paths of the requests that were answered, in order, without the leading /v2/.
func (r *Registry) Served() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.served...)
}

func (r *Registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	path := strings.TrimPrefix(q.URL.Path, "/v2/")
	data, mediaType := r.blobs[path], "application/octet-stream"
	if m, ok := r.manifests[path]; ok {
		data, mediaType = m, v1.MediaTypeImageManifest
	}
	if path != "" && data == nil {
		http.Error(w, `{"errors":[{"code":"MANIFEST_UNKNOWN"}]}`, http.StatusNotFound)
		return
	}
	r.mu.Lock()
	r.served = append(r.served, path)
	r.mu.Unlock()
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.Header().Set("Docker-Content-Digest", digest.FromBytes(data).String())
	if q.Method != http.MethodHead {
		_, _ = w.Write(data)
	}
}
