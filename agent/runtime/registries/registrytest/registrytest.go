// Package registrytest is an image registry in memory for tests: pull only, with
// basic or token authentication.
package registrytest

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Registry is an http.Handler. Its fields are set before it serves.
type Registry struct {
	// Username and Password are demanded if Username is not empty, or a Token in
	// their place if that is not: it is given out at /token to whoever has them.
	Username, Password string
	Token              string
	// Prefix is the path before the API, usually empty.
	Prefix string

	mu        sync.Mutex
	manifests map[string][]byte // by repository + ":" + tag and by repository + "@" + digest
	blobs     map[digest.Digest][]byte
	requests  []*url.URL
}

// New returns an empty registry without authentication.
func New() *Registry {
	return &Registry{manifests: map[string][]byte{}, blobs: map[digest.Digest][]byte{}}
}

// Add makes an image of one layer available and returns its manifest's descriptor.
// The layer is a gzipped tar with the given digest of its contents.
func (r *Registry) Add(repository, tag string, config ocispec.Image, layer []byte) (ocispec.Descriptor, error) {
	configData, err := json.Marshal(config)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	manifest := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: describe(ocispec.MediaTypeImageConfig, configData),
		Layers: []ocispec.Descriptor{describe(ocispec.MediaTypeImageLayerGzip, layer)},
	}
	data, err := json.Marshal(manifest)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	desc := describe(manifest.MediaType, data)
	r.manifests[repository+":"+tag], r.manifests[repository+"@"+desc.Digest.String()] = data, data
	r.blobs[manifest.Config.Digest], r.blobs[manifest.Layers[0].Digest] = configData, layer
	return desc, nil
}

func describe(mediaType string, data []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
}

// Lose removes all blobs and keeps the manifests.
func (r *Registry) Lose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.blobs)
}

// Requests returns the URLs of all requests so far that passed authentication.
func (r *Registry) Requests() []*url.URL {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.requests)
}

// ServeHTTP implements http.Handler.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path == "/token" {
		r.serveToken(w, req)
		return
	}
	if !r.authorized(req) {
		w.Header().Set("WWW-Authenticate", r.challenge(req))
		http.Error(w, "unauthorized", http.StatusUnauthorized)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, req.URL)
	path, ok := strings.CutPrefix(req.URL.Path, r.Prefix+"/v2/")
	if !ok {
		http.NotFound(w, req)
		return
	}
	r.serve(w, req, path)
}

func (r *Registry) serve(w http.ResponseWriter, req *http.Request, path string) {
	if repository, ref, ok := strings.Cut(path, "/manifests/"); ok {
		separator := ":"
		if strings.Contains(ref, ":") {
			separator = "@"
		}
		write(w, req, ocispec.MediaTypeImageManifest, r.manifests[repository+separator+ref])
		return
	}
	_, ref, _ := strings.Cut(path, "/blobs/")
	write(w, req, "application/octet-stream", r.blobs[digest.Digest(ref)])
}

func write(w http.ResponseWriter, req *http.Request, mediaType string, data []byte) {
	if data == nil {
		http.NotFound(w, req)
		return
	}
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Docker-Content-Digest", digest.FromBytes(data).String())
	_, _ = w.Write(data) // the client may have gone
}

func (r *Registry) authorized(req *http.Request) bool {
	if r.Token != "" {
		return req.Header.Get("Authorization") == "Bearer "+r.Token
	}
	return r.hasPassword(req)
}

func (r *Registry) hasPassword(req *http.Request) bool {
	user, password, _ := req.BasicAuth()
	return r.Username == "" || user == r.Username && password == r.Password
}

func (r *Registry) challenge(req *http.Request) string {
	if r.Token == "" {
		return `Basic realm="test"`
	}
	return `Bearer realm="http://` + req.Host + `/token",service="test"`
}

func (r *Registry) serveToken(w http.ResponseWriter, req *http.Request) {
	if !r.hasPassword(req) {
		http.Error(w, "unauthorized", http.StatusUnauthorized)
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]string{"token": r.Token}) // the client may have gone
}
