package image_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

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
