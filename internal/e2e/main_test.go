//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/testkit/cluster"
	"github.com/clusterd/clusterd/internal/testkit/databases"
	"github.com/clusterd/clusterd/internal/testkit/image"
	"github.com/clusterd/clusterd/internal/testkit/lab"
)

// toolsImage has busybox and the program in testimage.
const toolsImage = "clusterd.test/tools:1"

// These are made once, by TestMain.
var (
	machines *lab.Lab
	binary   string
	tools    *image.Image
	dirs     datadir.Dir
	kept     bool
)

func TestMain(m *testing.M) {
	if err := setUp(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	code := m.Run()
	databases.Clean()
	if !kept {
		if err := machines.Clean(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

func setUp() (err error) {
	if os.Geteuid() != 0 {
		return fmt.Errorf("root is needed")
	}
	if binary = os.Getenv("CLUSTERD_BIN"); binary == "" {
		binary = filepath.Join("..", "..", "bin", "clusterd")
	}
	if binary, err = filepath.Abs(binary); err != nil {
		return err
	}
	if _, err := os.Stat(binary); err != nil {
		return fmt.Errorf("%w: run make build first", err)
	}
	if dirs, err = datadir.New(datadir.DefaultRoot); err != nil {
		return err
	}
	if machines, err = lab.New("/var/tmp/clusterd-e2e"); err != nil {
		return err
	}
	tools, err = buildTools()
	return err
}

// buildTools composes the image that the tests' pods run.
func buildTools() (*image.Image, error) {
	dir, err := os.MkdirTemp("", "clusterd-e2e-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", filepath.Join(dir, "tool"), "./testimage")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build testimage: %w: %s", err, out)
	}
	tool, err := os.ReadFile(filepath.Join(dir, "tool"))
	if err != nil {
		return nil, err
	}
	files, err := busybox()
	if err != nil {
		return nil, err
	}
	files = append(files, image.File{Path: "bin/tool", Mode: 0o755, Data: tool})
	return image.New(toolsImage, files, v1.ImageConfig{Env: []string{"PATH=/bin"}})
}

func busybox() ([]image.File, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return nil, fmt.Errorf("%w: install busybox-static", err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	applets, err := exec.Command(path, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("list the applets of busybox: %w", err)
	}
	files := []image.File{{Path: "bin/busybox", Mode: 0o755, Data: data}}
	for _, a := range strings.Fields(string(applets)) {
		if a != "busybox" {
			files = append(files, image.File{Path: "bin/" + a, Link: "busybox"})
		}
	}
	return files, nil
}

// variant is an image of a digest of its own: busybox with a label.
func variant(t *testing.T, name string) *image.Image {
	t.Helper()
	files, err := busybox()
	if err != nil {
		t.Fatal(err)
	}
	i, err := image.New(name, files, v1.ImageConfig{Env: []string{"PATH=/bin"}, Labels: map[string]string{"name": name}})
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// newCluster makes a lab node for a cluster that is not started yet. After the test the node goes, unless
// CLUSTERD_E2E_KEEP says otherwise.
func newCluster(t *testing.T, name string, args ...string) *cluster.Cluster {
	t.Helper()
	node, err := machines.Up(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster.Cluster{Node: node, Binary: binary, Args: args}
	t.Cleanup(func() { tearDown(t, c) })
	return c
}

func tearDown(t *testing.T, c *cluster.Cluster) {
	if t.Failed() {
		t.Logf("the end of the server's log:\n%s", c.Tail(40))
		file := filepath.Join("..", "..", "bin", "e2e-"+c.Node.Name()+".log")
		if err := os.WriteFile(file, []byte(c.Log()), 0o644); err != nil {
			t.Error(err)
		}
	}
	keep := os.Getenv("CLUSTERD_E2E_KEEP")
	if keep == "always" || keep == "failure" && t.Failed() {
		kept = true
		t.Logf("kept: LAB_DIR=/var/tmp/clusterd-e2e scripts/lab exec %s bash; then scripts/lab clean", c.Node.Name())
		return
	}
	if err := c.Node.Down(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

// put writes a file in the node.
func put(t *testing.T, c *cluster.Cluster, path string, data []byte) {
	t.Helper()
	if err := c.Put(path, data); err != nil {
		t.Fatal(err)
	}
}

// within bounds a step of a test.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
