// Package image composes small container images out of files, without a container engine, and hands them out as OCI
// archives or through a registry.
package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// nameAnnotation is where containerd's importer looks for an image's whole name.
const nameAnnotation = "io.containerd.image.name"

// File is one entry of an image's file system: a regular file, or with Link set a symbolic link. Parent directories are
// made as needed.
type File struct {
	Path string // relative to the root
	Mode fs.FileMode
	Data []byte
	Link string
}

// Image is a named image of one layer.
type Image struct {
	Name     string
	layer    []byte
	config   []byte
	manifest []byte
}

// New composes an image. The name is a whole one, with registry and tag. Equal arguments give equal digests, and another
// label gives others.
func New(name string, files []File, config v1.ImageConfig) (*Image, error) {
	layer, diff, err := pack(files)
	if err != nil {
		return nil, fmt.Errorf("pack image %s: %w", name, err)
	}
	i := &Image{Name: name, layer: layer}
	i.config, err = json.Marshal(v1.Image{
		Platform: platform(),
		Config:   config,
		RootFS:   v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{diff}},
	})
	if err != nil {
		return nil, err
	}
	i.manifest, err = json.Marshal(v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: v1.MediaTypeImageManifest,
		Config:    descriptor(v1.MediaTypeImageConfig, i.config),
		Layers:    []v1.Descriptor{descriptor(v1.MediaTypeImageLayerGzip, layer)},
	})
	return i, err
}

// As is the same image under another name.
func (i *Image) As(name string) *Image {
	c := *i
	c.Name = name
	return &c
}

// Digest is the manifest's digest.
func (i *Image) Digest() string { return digest.FromBytes(i.manifest).String() }

func platform() v1.Platform { return v1.Platform{OS: "linux", Architecture: runtime.GOARCH} }

func descriptor(mediaType string, data []byte) v1.Descriptor {
	return v1.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
}

// pack returns the files as a gzip-compressed tar, and the digest of the plain one.
func pack(files []File) ([]byte, digest.Digest, error) {
	var out bytes.Buffer
	compressed, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		return nil, "", err
	}
	sum := digest.Canonical.Digester()
	t := tar.NewWriter(io.MultiWriter(compressed, sum.Hash()))
	for _, f := range files {
		h := &tar.Header{Name: f.Path, Mode: int64(f.Mode.Perm()), Size: int64(len(f.Data)), Typeflag: tar.TypeReg, Linkname: f.Link}
		if f.Link != "" {
			h.Typeflag = tar.TypeSymlink
		}
		if err := add(t, h, f.Data); err != nil {
			return nil, "", err
		}
	}
	if err := errors.Join(t.Close(), compressed.Close()); err != nil {
		return nil, "", err
	}
	return out.Bytes(), sum.Digest(), nil
}

func add(t *tar.Writer, h *tar.Header, data []byte) error {
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	_, err := t.Write(data)
	return err
}

// Archive writes the images as one OCI layout in a tar, which `clusterd images import` and `ctr image import` read.
func Archive(w io.Writer, images ...*Image) error {
	index := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex}
	blobs := map[digest.Digest][]byte{}
	for _, i := range images {
		d := descriptor(v1.MediaTypeImageManifest, i.manifest)
		d.Annotations = map[string]string{nameAnnotation: i.Name}
		p := platform()
		d.Platform = &p
		index.Manifests = append(index.Manifests, d)
		for _, b := range [][]byte{i.layer, i.config, i.manifest} {
			blobs[digest.FromBytes(b)] = b
		}
	}
	list, err := json.Marshal(index)
	if err != nil {
		return err
	}
	files := []File{{Path: v1.ImageLayoutFile, Data: []byte(`{"imageLayoutVersion":"1.0.0"}`)}, {Path: "index.json", Data: list}}
	for d, b := range blobs {
		files = append(files, File{Path: "blobs/sha256/" + d.Encoded(), Data: b})
	}
	t := tar.NewWriter(w)
	for _, f := range files {
		if err := add(t, &tar.Header{Name: f.Path, Mode: 0o644, Size: int64(len(f.Data)), Typeflag: tar.TypeReg}, f.Data); err != nil {
			return err
		}
	}
	return t.Close()
}
