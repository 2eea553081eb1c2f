package cli_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clusterd/clusterd/internal/cli"
	"github.com/clusterd/clusterd/internal/datadir"
)

// fakeImages is a node with a socket file and two images.
func fakeImages(t *testing.T) (images cli.Images, socket string) {
	t.Helper()
	dir, err := datadir.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	socket = dir.ContainerdSocket()
	t.Cleanup(func() { os.RemoveAll(dir.RunDir()) })
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		t.Skip("needs to write to ", filepath.Dir(socket))
	}
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	images.DataDir = dir.Root
	images.List = func(_ context.Context, s string) ([]cli.Image, error) {
		return []cli.Image{
			{Name: "example.org/" + filepath.Base(s), Digest: "sha256:1", Size: 1 << 19, Pinned: true},
			{Name: "b", Digest: "sha256:2", Size: 3 << 20},
		}, nil
	}
	images.Import = func(_ context.Context, s, file string) ([]cli.Image, error) {
		if s != socket || file == "bad.tar" {
			return nil, errors.New("not an archive")
		}
		return []cli.Image{{Name: "from " + file}}, nil
	}
	return images, socket
}

func TestImages(t *testing.T) {
	const table = "IMAGE                        DIGEST    SIZE     PINNED\n" +
		"example.org/containerd.sock  sha256:1  0.5 MiB  yes\n" +
		"b                            sha256:2  3.0 MiB  no\n"
	for _, row := range []struct{ args, want, fault string }{
		{"list", table, ""},
		{"ls", table, ""},
		{"list --quiet", "example.org/containerd.sock\nb\n", ""},
		{"import a.tar b.tar", "from a.tar\nfrom b.tar\n", ""},
		{"import a.tar bad.tar", "from a.tar\n", "import bad.tar: not an archive"},
	} {
		t.Run(row.args, func(t *testing.T) {
			images, _ := fakeImages(t)
			out, err := run(t, newApp(images), append([]string{"images"}, strings.Fields(row.args)...)...)
			if out != row.want {
				t.Errorf("printed\n%s\nwant\n%s", out, row.want)
			}
			if row.fault == "" && err != nil || row.fault != "" && (err == nil || err.Error() != row.fault) {
				t.Errorf("got %v, want %q", err, row.fault)
			}
		})
	}
}

func TestImagesOfAnotherDataDir(t *testing.T) {
	images, _ := fakeImages(t)
	root := images.DataDir()
	images.DataDir = t.TempDir // where nothing runs
	if _, err := run(t, newApp(images), "images", "list", "--data-dir", root); err != nil {
		t.Error(err)
	}
	_, err := run(t, newApp(images), "images", "list")
	if err == nil || !strings.HasPrefix(err.Error(), "no node runs with the data directory ") || cli.ExitCode(err) != 1 {
		t.Errorf("got %v", err)
	}
}
