package runtime

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
)

// Labels by which CRI knows an image as its own, and as one that the kubelet
// must not remove to make room.
var importLabels = map[string]string{
	"io.cri-containerd.image":  "managed",
	"io.cri-containerd.pinned": "pinned",
}

const pinnedLabel = "io.cri-containerd.pinned"

// Image is a named image in the store.
type Image struct {
	Name string
	// Digest is of the manifest or index.
	Digest string
	// Size is that of the contents for this platform, in bytes.
	Size int64
	// Pinned images are not removed to make room.
	Pinned bool
}

// Import adds all images of an archive (a docker or OCI archive as tar, also
// compressed with gzip or zstd) to the store of the containerd at socket, pinned
// and unpacked. It returns them as they are named in the archive.
func Import(ctx context.Context, socket, file string) ([]Image, error) {
	c, err := connect(socket)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return importArchive(namespaces.WithNamespace(ctx, namespace), c, file)
}

// List returns the images in the store of the containerd at socket, in the order
// of their names. Names that are only an image's ID are left out.
func List(ctx context.Context, socket string) ([]Image, error) {
	c, err := connect(socket)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ctx = namespaces.WithNamespace(ctx, namespace)
	list, err := c.ListImages(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	var named []Image
	for _, i := range list {
		if _, err := digest.Parse(i.Name()); err == nil {
			continue
		}
		size, err := i.Size(ctx)
		if err != nil && !errdefs.IsNotFound(err) {
			return nil, fmt.Errorf("get size of image %s: %w", i.Name(), err)
		}
		named = append(named, Image{Name: i.Name(), Digest: i.Target().Digest.String(), Size: size, Pinned: i.Labels()[pinnedLabel] != ""})
	}
	return named, nil
}

func connect(socket string) (*client.Client, error) {
	conn, err := dial(socket)
	if err != nil {
		return nil, err
	}
	c, err := client.NewWithConn(conn, client.WithDefaultNamespace(namespace), client.WithDefaultPlatform(platforms.Default()))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to %s: %w", socket, err), conn.Close())
	}
	return c, nil
}

// importArchive does what Import says; ctx has the namespace.
func importArchive(ctx context.Context, c *client.Client, file string) ([]Image, error) {
	archive, err := openArchive(file)
	if err != nil {
		return nil, fmt.Errorf("open image archive: %w", err)
	}
	defer archive.Close()
	imported, err := c.Import(ctx, archive, client.WithImageRefTranslator(imageName),
		client.WithImageLabels(importLabels), client.WithSkipMissing())
	if err != nil {
		return nil, fmt.Errorf("import image archive %s: %w", file, err)
	}
	if len(imported) == 0 {
		return nil, fmt.Errorf("import image archive %s: it names no image for %s", file, platforms.DefaultString())
	}
	result := make([]Image, 0, len(imported))
	for _, i := range imported {
		size, err := adopt(ctx, c, i)
		if err != nil {
			return nil, fmt.Errorf("import image %s: %w", i.Name, err)
		}
		result = append(result, Image{Name: i.Name, Digest: i.Target.Digest.String(), Size: size, Pinned: true})
	}
	return result, nil
}

// adopt unpacks an imported image and gives it the further names that CRI gives
// to an image it has pulled: its ID and its repository with the digest.
func adopt(ctx context.Context, c *client.Client, i images.Image) (size int64, err error) {
	image := client.NewImage(c, i)
	if err := image.Unpack(ctx, ""); err != nil {
		return 0, fmt.Errorf("unpack: %w", err)
	}
	config, err := image.Config(ctx)
	if err != nil {
		return 0, fmt.Errorf("read configuration: %w", err)
	}
	names := []string{config.Digest.String()}
	if named, err := reference.ParseDockerRef(i.Name); err == nil {
		names = append(names, reference.TrimNamed(named).Name()+"@"+i.Target.Digest.String())
	}
	for _, name := range names {
		if err := tag(ctx, c.ImageService(), images.Image{Name: name, Target: i.Target, Labels: maps.Clone(importLabels)}); err != nil {
			return 0, fmt.Errorf("name %s: %w", name, err)
		}
	}
	return image.Size(ctx)
}

func tag(ctx context.Context, store images.Store, i images.Image) error {
	_, err := store.Create(ctx, i)
	if errdefs.IsAlreadyExists(err) {
		_, err = store.Update(ctx, i, "target", "labels")
	}
	return err
}

// imageName completes a name from an archive. Some tools leave only a tag there,
// which names nothing.
func imageName(name string) string {
	if !strings.Contains(name, "/") && !strings.Contains(name, ":") {
		return ""
	}
	named, err := reference.ParseDockerRef(name)
	if err != nil {
		return ""
	}
	return named.String()
}

// archive is an open archive file as an uncompressed stream.
type archive struct {
	io.Reader
	closers []func() error // in order
}

// Close closes the decoder and the file.
func (a archive) Close() error {
	var errs []error
	for _, closer := range a.closers {
		errs = append(errs, closer())
	}
	return errors.Join(errs...)
}

// openArchive tells the compression by the contents, not by the name.
func openArchive(path string) (archive, error) {
	file, err := os.Open(path)
	if err != nil {
		return archive{}, err
	}
	plain, closer, err := decompress(bufio.NewReaderSize(file, 1<<16))
	if err != nil {
		return archive{}, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
	}
	return archive{Reader: plain, closers: []func() error{closer, file.Close}}, nil
}

func decompress(in *bufio.Reader) (io.Reader, func() error, error) {
	magic, err := in.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		plain, err := gzip.NewReader(in)
		if err != nil {
			return nil, nil, err
		}
		return plain, plain.Close, nil
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		plain, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, nil, err
		}
		return plain, func() error { plain.Close(); return nil }, nil
	}
	return in, func() error { return nil }, nil
}
