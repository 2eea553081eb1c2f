package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// nobody is the user of the image's process, as in the pause image of Kubernetes.
const nobody = "65535:65535"

// imageNameAnnotation holds an image's full name in an archive's index.
const imageNameAnnotation = "io.containerd.image.name"

// entry is one file of a tar.
type entry struct {
	name string
	mode int64
	data []byte
}

// writeImage writes an OCI image archive with the executable binary and nothing
// else in its one layer.
func writeImage(out, name, binary string) error {
	data, err := os.ReadFile(binary)
	if err != nil {
		return fmt.Errorf("read executable: %w", err)
	}
	base := filepath.Base(binary)
	layer, err := tarball([]entry{{base, 0o755, data}})
	if err != nil {
		return fmt.Errorf("write layer: %w", err)
	}
	zipped, err := compress(layer)
	if err != nil {
		return fmt.Errorf("compress layer: %w", err)
	}
	entries, err := layout(name, path.Join("/", base), layer, zipped)
	if err != nil {
		return fmt.Errorf("write image %s: %w", name, err)
	}
	archive, err := tarball(entries)
	if err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	return os.WriteFile(out, archive, 0o644)
}

// layout returns the files of an OCI image layout with one image.
func layout(name, entrypoint string, layer, zipped []byte) ([]entry, error) {
	platform := ocispec.Platform{Architecture: runtime.GOARCH, OS: "linux"}
	epoch := time.Unix(0, 0).UTC()
	config, err := json.Marshal(ocispec.Image{
		Created: &epoch, Platform: platform,
		Config:  ocispec.ImageConfig{User: nobody, WorkingDir: "/", Entrypoint: []string{entrypoint}},
		RootFS:  ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(layer)}},
		History: []ocispec.History{{Created: &epoch, CreatedBy: "COPY " + path.Base(entrypoint) + " /"}},
	})
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: descriptor(ocispec.MediaTypeImageConfig, config),
		Layers: []ocispec.Descriptor{descriptor(ocispec.MediaTypeImageLayerGzip, zipped)},
	})
	if err != nil {
		return nil, err
	}
	image := descriptor(ocispec.MediaTypeImageManifest, manifest)
	image.Platform, image.Annotations = &platform, map[string]string{imageNameAnnotation: name}
	index, err := json.Marshal(ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{image},
	})
	if err != nil {
		return nil, err
	}
	version, err := json.Marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	if err != nil {
		return nil, err
	}
	return []entry{
		{ocispec.ImageLayoutFile, 0o644, version}, {ocispec.ImageIndexFile, 0o644, index},
		blob(config), blob(manifest), blob(zipped),
	}, nil
}

func descriptor(mediaType string, data []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
}

func blob(data []byte) entry {
	d := digest.FromBytes(data)
	return entry{path.Join(ocispec.ImageBlobsDir, d.Algorithm().String(), d.Encoded()), 0o644, data}
}

func tarball(entries []entry) ([]byte, error) {
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	for _, e := range entries {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Size: int64(len(e.data)), Mode: e.mode, Format: tar.FormatUSTAR}
		if err := tw.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := tw.Write(e.data); err != nil {
			return nil, err
		}
	}
	if err := tw.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func compress(data []byte) ([]byte, error) {
	var out bytes.Buffer
	zw := gzip.NewWriter(&out)
	if _, err := zw.Write(data); err != nil {
		return nil, err
	}
	if err := zw.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
