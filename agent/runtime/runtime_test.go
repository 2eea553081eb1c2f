package runtime_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/clusterd/clusterd/agent/runtime"
	"github.com/clusterd/clusterd/internal/lifecycle"
	"github.com/clusterd/clusterd/internal/testkit"
	"github.com/clusterd/clusterd/internal/testkit/image"
)

// configVariable tells this executable to be a runtime and not a test.
const configVariable = "CLUSTERD_TEST_RUNTIME_CONFIG"

func TestMain(m *testing.M) {
	if config := os.Getenv(configVariable); config != "" {
		if err := serve([]byte(config)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serve runs a runtime until SIGTERM and prints a line when it is ready.
func serve(config []byte) error {
	var c runtime.Config
	if err := json.Unmarshal(config, &c); err != nil {
		return err
	}
	r, err := runtime.New(c, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo})))
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return lifecycle.Run(ctx, r, lifecycle.Options{Ready: func(string, time.Duration) { fmt.Println("ready") }})
}

func TestSandboxOutlivesRuntime(t *testing.T) {
	if !inside(t) {
		return
	}
	n := newNode(t)

	n.start(t)
	sandbox := n.runSandbox(t)
	pid := n.sandboxPID(t, sandbox)
	n.kill(t)
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("the sandbox died with the runtime: %v", err)
	}

	n.start(t)
	if again := n.sandboxPID(t, sandbox); again != pid {
		t.Errorf("the sandbox's process is %d after a restart, was %d", again, pid)
	}
	n.stop(t)
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("the sandbox died with an orderly stop: %v", err)
	}

	n.start(t)
	n.removeSandbox(t, sandbox)
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the sandbox's process outlives its removal: %v", err)
	}
	n.stop(t)
	if n.log.Len() > 0 {
		t.Errorf("the runtime logged at level info:\n%s", n.log.String())
	}
}

func TestSandboxesHaveTheirNetworkNamespaces(t *testing.T) {
	if !inside(t) {
		return
	}
	n := newNode(t)
	n.addNetwork(t)
	n.start(t)
	r, err := runtime.New(n.config, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	host := n.runSandbox(t)
	if paths, err := r.Sandboxes(t.Context()); err != nil || len(paths) != 0 {
		t.Errorf("a sandbox in the host's network has a network namespace: %v, %v", paths, err)
	}
	n.removeSandbox(t, host)

	pod := n.run(t, sandboxConfig(t, criapi.NamespaceMode_POD))
	paths, err := r.Sandboxes(t.Context())
	if err != nil || len(paths) != 1 || !strings.HasPrefix(paths[pod], n.config.State+"/") {
		t.Fatalf("the sandboxes are %v, %v", paths, err)
	}
	// Somebody's first named network namespace makes a mount of its own of /run/netns.
	if output, err := exec.Command("ip", "netns", "add", "other").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	if output, err := exec.Command("nsenter", "--net="+paths[pod], "true").CombinedOutput(); err != nil {
		t.Errorf("the pod's network namespace is lost: %v\n%s", err, output)
	}
	n.removeSandbox(t, pod)
	if paths, err := r.Sandboxes(t.Context()); err != nil || len(paths) != 0 {
		t.Errorf("the removed sandbox is still there: %v, %v", paths, err)
	}
}

func TestContainerRunsAndIsMeasured(t *testing.T) {
	if !inside(t) {
		return
	}
	n := newNode(t)
	n.start(t)
	config := sandboxConfig(t, criapi.NamespaceMode_NODE)
	sandbox := n.run(t, config)
	container := n.runContainer(t, sandbox, config)
	stats, err := n.runtime.ContainerStats(t.Context(), &criapi.ContainerStatsRequest{ContainerId: container})
	if err != nil {
		t.Fatal(err)
	}
	if stats.GetStats().GetMemory().GetWorkingSetBytes().GetValue() == 0 || stats.GetStats().GetCpu().GetUsageCoreNanoSeconds().GetValue() == 0 {
		t.Errorf("the container's figures are %v", stats.GetStats())
	}
	n.removeSandbox(t, sandbox)
	n.stop(t)
	if n.log.Len() > 0 {
		t.Errorf("the runtime logged:\n%s", n.log.String())
	}
}

func TestComponent(t *testing.T) {
	if !inside(t) {
		return
	}
	testkit.Component(t, func(t *testing.T) lifecycle.Component {
		n := newNode(t)
		n.config.State = filepath.Join("/run", filepath.Base(filepath.Dir(n.config.Root)))
		n.config.Socket = filepath.Join(n.config.State, "containerd.sock")
		r, err := runtime.New(n.config, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}, containerdLeaks...)
}

// containerdLeaks are what containerd starts and never stops, being a process of
// its own usually.
var containerdLeaks = []testkit.ComponentOption{
	testkit.MayLeak("images.(*snapshotsSyncer).start"),
	testkit.MayLeak("events.(*EventMonitor).Start"), // of the pod sandbox controller
	testkit.MayLeak("go-events.(*Broadcaster).run"),
	testkit.MayLeak("containerd/v2/internal/eventq.New"),
	testkit.MayLeak("cdi.(*watch).watch"),
	testkit.MayLeak("fsnotify.(*inotify).readEvents"), // for that watch
}

func TestArchivesAreImportedAndPinned(t *testing.T) {
	if !inside(t) {
		return
	}
	n := newNode(t)
	for name, compress := range map[string]func(testing.TB, []byte) []byte{"plain.tar": asIs, "zipped.tar.gz": image.Gzip, "small.tar.zst": image.Zstd} {
		image := "example.test/" + strings.TrimSuffix(name, filepath.Ext(name)) + ":v1"
		writeFile(t, filepath.Join(n.config.ImagesDir, name), compress(t, imageArchive(t, image)))
	}
	writeFile(t, filepath.Join(n.config.ImagesDir, "broken.tar"), []byte("no archive"))

	n.start(t)
	for _, image := range []string{"example.test/plain:v1", "example.test/zipped.tar:v1", "example.test/small.tar:v1", runtime.DefaultPauseImage} {
		if id := n.pull(t, image); id == "" {
			t.Errorf("image %s was not imported", image)
		}
	}
	for _, image := range n.list(t) {
		if !image.Pinned {
			t.Errorf("image %s is not pinned", image.Name)
		}
	}
	if log := n.log.String(); strings.Count(log, "level=") != 1 || !strings.Contains(log, "broken.tar") {
		t.Errorf("the broken archive and nothing else should be logged:\n%s", log)
	}

}

func TestArchivesAreImportedOnce(t *testing.T) {
	if !inside(t) {
		return
	}
	n := newNode(t)
	kept, removed := filepath.Join(n.config.ImagesDir, "kept.tar"), filepath.Join(n.config.ImagesDir, "removed.tar")
	writeFile(t, kept, imageArchive(t, "example.test/kept:v1"))
	writeFile(t, removed, imageArchive(t, "example.test/removed:v1"))
	n.start(t)
	n.pull(t, "example.test/kept:v1")
	n.removeImage(t, "example.test/removed:v1")
	n.stop(t)

	// Who reads it again stumbles over its contents.
	spoil(t, kept)
	n.start(t)
	for _, image := range []string{"example.test/kept:v1", "example.test/removed:v1"} {
		if id := n.pull(t, image); id == "" {
			t.Errorf("image %s is not there", image)
		}
	}
	n.stop(t)
	if n.log.Len() > 0 {
		t.Errorf("the runtime logged:\n%s", n.log.String())
	}
}

func TestImportCommand(t *testing.T) {
	if !inside(t) {
		return
	}
	n := newNode(t)
	n.start(t)
	file := filepath.Join(t.TempDir(), "image.tar")
	writeFile(t, file, imageArchive(t, "example.test/by-hand:v1"))
	imported, err := runtime.Import(t.Context(), n.config.Socket, file)
	if err != nil || len(imported) != 1 || imported[0].Name != "example.test/by-hand:v1" {
		t.Fatalf("imported %v, %v", imported, err)
	}
	if !slices.ContainsFunc(n.list(t), func(i runtime.Image) bool { return i == imported[0] }) {
		t.Errorf("the list %v lacks %v", n.list(t), imported[0])
	}
	if _, err := runtime.Import(t.Context(), n.config.Socket, filepath.Join(t.TempDir(), "none.tar")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file gives %v", err)
	}
}

func TestPullFollowsChangedRegistriesFile(t *testing.T) {
	if !inside(t) {
		return
	}
	n := newNode(t)
	server := httptest.NewServer(privateRegistry(t, "copies/app"))
	defer server.Close()
	n.start(t)

	const image = "127.0.0.1:1/team/app:v1"
	pull := &criapi.PullImageRequest{Image: &criapi.ImageSpec{Image: image}}
	if _, err := n.images.PullImage(t.Context(), pull); err == nil {
		t.Fatal("the image was pulled from nowhere")
	}
	host := server.Listener.Addr().String()
	writeFile(t, n.config.RegistriesFile, fmt.Appendf(nil, `
mirrors:
  "127.0.0.1:1":
    endpoint: ["http://%s"]
    rewrite: {"^team/": "copies/"}
configs:
  "%s": {auth: {username: me, password: secret}}
`, host, host))
	if _, err := n.images.PullImage(t.Context(), pull); err != nil {
		t.Fatal(err)
	}
	if n.imageID(t, image) == "" {
		t.Error("the pulled image is not there")
	}
}

func TestPullUsesItsCredentials(t *testing.T) {
	if !inside(t) {
		return
	}
	n := newNode(t)
	server := httptest.NewServer(privateRegistry(t, "team/app"))
	defer server.Close()
	n.start(t)
	pull := &criapi.PullImageRequest{Image: &criapi.ImageSpec{Image: server.Listener.Addr().String() + "/team/app:v1"}}
	if _, err := n.images.PullImage(t.Context(), pull); err == nil {
		t.Fatal("the image was pulled without credentials")
	}
	pull.Auth = &criapi.AuthConfig{Username: "me", Password: "secret"}
	if _, err := n.images.PullImage(t.Context(), pull); err != nil {
		t.Fatal(err)
	}
}

func TestNativeSnapshotter(t *testing.T) {
	if !inside(t) {
		return
	}
	n := newNode(t)
	n.config.Snapshotter = "native"
	n.start(t)
	n.removeSandbox(t, n.runSandbox(t))
	n.stop(t)
}
