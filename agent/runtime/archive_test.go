package runtime_test

import (
	"archive/tar"
	"bytes"
	"os"
	goruntime "runtime"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/clusterd/clusterd/agent/runtime/registries/registrytest"
	"github.com/clusterd/clusterd/internal/testkit/image"
)

// imageArchive returns an OCI archive with an image of its own under each name.
func imageArchive(t *testing.T, names ...string) []byte {
	t.Helper()
	var images []*image.Image
	for _, name := range names {
		i, err := image.New(name, []image.File{{Path: "name", Mode: 0o644, Data: []byte(name)}}, ocispec.ImageConfig{})
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, i)
	}
	return image.Bytes(t, images...)
}

func asIs(_ testing.TB, data []byte) []byte { return data }

// spoil makes a file useless and leaves it its size and time.
func spoil(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, bytes.Repeat([]byte("x"), int(info.Size())))
	if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
}

// privateRegistry has an image of one file, for user "me" with password "secret".
func privateRegistry(t *testing.T, repository string) *registrytest.Registry {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	err := w.WriteHeader(&tar.Header{Name: "name", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(repository))})
	if err == nil {
		_, err = w.Write([]byte(repository))
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	r := registrytest.New()
	r.Username, r.Password = "me", "secret"
	config := ocispec.Image{
		Platform: ocispec.Platform{OS: "linux", Architecture: goruntime.GOARCH},
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(layer.Bytes())}},
	}
	if _, err := r.Add(repository, "v1", config, image.Gzip(t, layer.Bytes())); err != nil {
		t.Fatal(err)
	}
	return r
}
