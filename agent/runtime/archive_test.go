package runtime_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	goruntime "runtime"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/clusterd/clusterd/agent/runtime/registries/registrytest"
)

// imageArchive returns an OCI archive with an image of its own under each name.
func imageArchive(t *testing.T, names ...string) []byte {
	t.Helper()
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	files := map[string][]byte{ocispec.ImageLayoutFile: encode(t, ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})}
	add := func(mediaType string, data []byte) ocispec.Descriptor {
		d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
		files["blobs/sha256/"+d.Digest.Encoded()] = data
		return d
	}
	for _, name := range names {
		layer := tarball(t, map[string][]byte{"name": []byte(name)})
		manifest := add(ocispec.MediaTypeImageManifest, encode(t, ocispec.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
			Config: add(ocispec.MediaTypeImageConfig, encode(t, imageConfig(layer))),
			Layers: []ocispec.Descriptor{add(ocispec.MediaTypeImageLayerGzip, gzipped(t, layer))},
		}))
		manifest.Annotations = map[string]string{"io.containerd.image.name": name}
		index.Manifests = append(index.Manifests, manifest)
	}
	files[ocispec.ImageIndexFile] = encode(t, index)
	return tarball(t, files)
}

// imageConfig is that of an image with one layer.
func imageConfig(layer []byte) ocispec.Image {
	return ocispec.Image{
		Platform: ocispec.Platform{OS: "linux", Architecture: goruntime.GOARCH},
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(layer)}},
	}
}

func tarball(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for name, data := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func asIs(_ *testing.T, data []byte) []byte { return data }

func gzipped(t *testing.T, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstandard(t *testing.T, data []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(data, nil)
}

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
	layer := tarball(t, map[string][]byte{"name": []byte(repository)})
	r := registrytest.New()
	r.Username, r.Password = "me", "secret"
	if _, err := r.Add(repository, "v1", imageConfig(layer), gzipped(t, layer)); err != nil {
		t.Fatal(err)
	}
	return r
}
