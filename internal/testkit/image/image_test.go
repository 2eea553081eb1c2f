package image_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/clusterd/clusterd/internal/testkit/image"
)

func newImage(t *testing.T, label string) *image.Image {
	t.Helper()
	i, err := image.New("registry.test/some/thing:1", []image.File{
		{Path: "bin/tool", Mode: 0o755, Data: []byte("tool")},
		{Path: "bin/other", Link: "tool"},
	}, v1.ImageConfig{Entrypoint: []string{"/bin/tool"}, Labels: map[string]string{"l": label}})
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestDigest(t *testing.T) {
	if a, b := newImage(t, "x").Digest(), newImage(t, "x").Digest(); a != b {
		t.Errorf("two digests for the same image: %s and %s", a, b)
	}
	if a, b := newImage(t, "x").Digest(), newImage(t, "y").Digest(); a == b {
		t.Errorf("one digest for two images: %s", a)
	}
}

func TestArchive(t *testing.T) {
	i := newImage(t, "x")
	var out bytes.Buffer
	if err := image.Archive(&out, i, i.As("registry.test/second:2")); err != nil {
		t.Fatal(err)
	}
	files := untar(t, &out)
	var index v1.Index
	if err := json.Unmarshal(files["index.json"], &index); err != nil {
		t.Fatal(err)
	}
	if len(index.Manifests) != 2 {
		t.Fatalf("%d manifests in the index, want 2", len(index.Manifests))
	}
	for n, want := range []string{"registry.test/some/thing:1", "registry.test/second:2"} {
		m := index.Manifests[n]
		if got := m.Annotations["io.containerd.image.name"]; got != want {
			t.Errorf("name of image %d: %s, want %s", n, got, want)
		}
		if blob := files["blobs/sha256/"+m.Digest.Encoded()]; int64(len(blob)) != m.Size {
			t.Errorf("image %d: manifest of %d bytes, the index says %d", n, len(blob), m.Size)
		}
	}
	if len(files) != 5 {
		t.Errorf("%d files in the archive, want 5: the two images share their blobs", len(files))
	}
}

// TestLayer unpacks the layer as a container runtime does.
func TestLayer(t *testing.T) {
	var out bytes.Buffer
	if err := image.Archive(&out, newImage(t, "x")); err != nil {
		t.Fatal(err)
	}
	files := untar(t, &out)
	blob := func(d v1.Descriptor) []byte { return files["blobs/sha256/"+d.Digest.Encoded()] }
	var index v1.Index
	var manifest v1.Manifest
	var config v1.Image
	for _, err := range []error{
		json.Unmarshal(files["index.json"], &index),
		json.Unmarshal(blob(index.Manifests[0]), &manifest),
		json.Unmarshal(blob(manifest.Config), &config),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	layer, err := gzip.NewReader(bytes.NewReader(blob(manifest.Layers[0])))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(layer)
	if err != nil {
		t.Fatal(err)
	}
	if got := digest.FromBytes(plain); got != config.RootFS.DiffIDs[0] {
		t.Errorf("the layer is %s, the configuration says %s", got, config.RootFS.DiffIDs[0])
	}
	if got := untar(t, bytes.NewReader(plain)); string(got["bin/tool"]) != "tool" || len(got) != 2 {
		t.Errorf("files of the layer: %q", got)
	}
}

func untar(t *testing.T, r io.Reader) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRegistry(t *testing.T) {
	i := newImage(t, "x")
	r := image.NewRegistry(i)
	s := httptest.NewServer(r)
	defer s.Close()
	for _, row := range []struct {
		path   string
		status int
	}{
		{"/v2/", http.StatusOK},
		{"/v2/some/thing/manifests/1", http.StatusOK},
		{"/v2/some/thing/manifests/" + i.Digest(), http.StatusOK},
		{"/v2/some/thing/manifests/2", http.StatusNotFound},
		{"/v2/some/thing/blobs/" + i.Digest(), http.StatusNotFound},
	} {
		res, err := http.Get(s.URL + row.path)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != row.status {
			t.Errorf("GET %s: %d, want %d", row.path, res.StatusCode, row.status)
		}
	}
	if got := r.Served(); len(got) != 3 {
		t.Errorf("served %q, want three requests", got)
	}
}
