package runtime_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/clusterd/clusterd/agent/runtime"
	"github.com/clusterd/clusterd/internal/bundle"
)

// insideVariable tells a test that it runs in namespaces of its own.
const insideVariable = "CLUSTERD_TEST_INSIDE"

// cgroupParent names the pods' cgroups of one test process.
func cgroupParent() string { return "/clusterd-test-" + os.Getenv(insideVariable) }

// inside reports whether the test is in a process with mount, network and process
// namespaces of its own, so that whatever it starts or mounts ends with it. If
// not, it runs the same test again in such a process.
func inside(t *testing.T) bool {
	t.Helper()
	if os.Getenv(insideVariable) != "" {
		prepareNamespaces(t)
		return true
	}
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root")
	}
	name := strconv.Itoa(os.Getpid())
	t.Cleanup(func() { removeCgroups(t, "clusterd-test-"+name) })
	inner := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.timeout=4m")
	inner.Env = append(os.Environ(), insideVariable+"="+name)
	inner.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL,
	}
	if output, err := inner.CombinedOutput(); err != nil {
		t.Errorf("in its namespaces: %v\n%s", err, output)
	}
	return false
}

func prepareNamespaces(t *testing.T) {
	t.Helper()
	for _, m := range []struct {
		source, target, fstype string
		flags                  uintptr
	}{
		{"none", "/", "", syscall.MS_REC | syscall.MS_PRIVATE},
		{"proc", "/proc", "proc", 0},
		{"tmpfs", "/run", "tmpfs", 0},
		{"tmpfs", "/var/lib", "tmpfs", 0}, // libcni's cache
	} {
		if err := syscall.Mount(m.source, m.target, m.fstype, m.flags, ""); err != nil {
			t.Fatalf("mount %s: %v", m.target, err)
		}
	}
	if output, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("set up loopback: %v\n%s", err, output)
	}
}

// removeCgroups removes what a failed test left in any hierarchy.
func removeCgroups(t *testing.T, name string) {
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup/*/" + name, "/sys/fs/cgroup/" + name} {
		matches, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, matches...)
	}
	for _, root := range found {
		var dirs []string
		err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append([]string{path}, dirs...)
			}
			return err
		})
		for _, dir := range dirs {
			if e := os.Remove(dir); e != nil {
				err = e
			}
		}
		if err != nil {
			t.Errorf("cgroup left behind: %v", err)
		}
	}
}

// node is a runtime in a process of its own, and clients for it.
type node struct {
	config  runtime.Config
	log     lockedBuffer
	process *exec.Cmd
	conn    *grpc.ClientConn
	images  criapi.ImageServiceClient
	runtime criapi.RuntimeServiceClient
}

func newNode(t *testing.T) *node {
	t.Helper()
	dir := t.TempDir()
	payload, err := bundle.Extract(filepath.Join(dir, "data"))
	if err != nil {
		t.Fatal(err)
	}
	n := &node{config: runtime.Config{
		Root: filepath.Join(dir, "root"), State: "/run/containerd", Socket: "/run/containerd/containerd.sock", Bundle: payload,
		CNIConfDir: filepath.Join(dir, "cni"), ImagesDir: filepath.Join(dir, "images"), RegistriesFile: filepath.Join(dir, "registries.yaml"),
		RestrictOOMScoreAdj: true,
	}}
	for _, sub := range []string{n.config.CNIConfDir, n.config.ImagesDir} {
		if err := os.Mkdir(sub, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if n.conn, err = grpc.NewClient("unix://"+n.config.Socket, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	n.images, n.runtime = criapi.NewImageServiceClient(n.conn), criapi.NewRuntimeServiceClient(n.conn)
	t.Cleanup(func() { n.tearDown(t) })
	return n
}

func (n *node) tearDown(t *testing.T) {
	if n.process != nil {
		n.stop(t)
	}
	if err := n.conn.Close(); err != nil {
		t.Error(err)
	}
}

// start starts the process and waits until it is ready.
func (n *node) start(t *testing.T) {
	t.Helper()
	config, err := json.Marshal(n.config)
	if err != nil {
		t.Fatal(err)
	}
	n.process = exec.Command("/proc/self/exe")
	n.process.Env = append(os.Environ(), configVariable+"="+string(config))
	n.process.Stderr = &n.log
	stdout, err := n.process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.process.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(stdout).ReadString('\n') // empty when the process ended
		lines <- line
	}()
	select {
	case line := <-lines:
		if line != "ready\n" {
			t.Fatalf("the runtime ended before it was ready:\n%s", n.log.String())
		}
	case <-time.After(time.Minute):
		t.Fatalf("the runtime is not ready after a minute:\n%s", n.log.String())
	}
}

// stop ends the process in order.
func (n *node) stop(t *testing.T) {
	t.Helper()
	begin := time.Now()
	n.end(t, syscall.SIGTERM)
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("the runtime took %v to stop", took)
	}
}

// kill ends the process as a crash would.
func (n *node) kill(t *testing.T) {
	t.Helper()
	n.end(t, syscall.SIGKILL)
}

func (n *node) end(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := n.process.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	if err := n.process.Wait(); err != nil && signal == syscall.SIGTERM {
		t.Errorf("the runtime ended with %v:\n%s", err, n.log.String())
	}
	n.process = nil
}

// runSandbox starts a pod sandbox in the host's network.
func (n *node) runSandbox(t *testing.T) string {
	t.Helper()
	return n.run(t, sandboxConfig(t, criapi.NamespaceMode_NODE))
}

func sandboxConfig(t *testing.T, network criapi.NamespaceMode) *criapi.PodSandboxConfig {
	return &criapi.PodSandboxConfig{
		Metadata: &criapi.PodSandboxMetadata{Name: "pod", Uid: "1", Namespace: "default"}, LogDirectory: t.TempDir(),
		Linux: &criapi.LinuxPodSandboxConfig{
			CgroupParent:    cgroupParent(),
			SecurityContext: &criapi.LinuxSandboxSecurityContext{NamespaceOptions: &criapi.NamespaceOption{Network: network}},
		},
	}
}

func (n *node) run(t *testing.T, config *criapi.PodSandboxConfig) string {
	t.Helper()
	answer, err := n.runtime.RunPodSandbox(t.Context(), &criapi.RunPodSandboxRequest{Config: config}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatalf("run pod sandbox: %v\n%s", err, n.log.String())
	}
	return answer.PodSandboxId
}

// runContainer starts a container with the pause image in a sandbox.
func (n *node) runContainer(t *testing.T, sandbox string, config *criapi.PodSandboxConfig) string {
	t.Helper()
	image := &criapi.ImageSpec{Image: n.imageID(t, runtime.DefaultPauseImage)}
	created, err := n.runtime.CreateContainer(t.Context(), &criapi.CreateContainerRequest{PodSandboxId: sandbox, SandboxConfig: config, Config: &criapi.ContainerConfig{
		Metadata: &criapi.ContainerMetadata{Name: "container"}, Image: image, LogPath: "log", Linux: &criapi.LinuxContainerConfig{},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.runtime.StartContainer(t.Context(), &criapi.StartContainerRequest{ContainerId: created.ContainerId}); err != nil {
		t.Fatal(err)
	}
	return created.ContainerId
}

// addNetwork installs a CNI plugin that says which address it has given.
func (n *node) addNetwork(t *testing.T) {
	t.Helper()
	const plugin = `#!/bin/sh
[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"'$CNI_NETNS'"}],"ips":[{"address":"10.9.8.7/24","interface":0}]}'
true
`
	path := filepath.Join(n.config.Bundle.CNIBin, "testnet")
	writeFile(t, path, []byte(plugin))
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(n.config.CNIConfDir, "10-test.conflist"), []byte(`{"cniVersion":"1.0.0","name":"test","plugins":[{"type":"testnet"}]}`))
}

func (n *node) sandboxPID(t *testing.T, id string) int {
	t.Helper()
	status, err := n.runtime.PodSandboxStatus(t.Context(), &criapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	if status.Status.State != criapi.PodSandboxState_SANDBOX_READY {
		t.Fatalf("the sandbox is %v", status.Status.State)
	}
	var info struct{ PID int }
	if err := json.Unmarshal([]byte(status.Info["info"]), &info); err != nil {
		t.Fatal(err)
	}
	return info.PID
}

func (n *node) removeSandbox(t *testing.T, id string) {
	t.Helper()
	if _, err := n.runtime.StopPodSandbox(t.Context(), &criapi.StopPodSandboxRequest{PodSandboxId: id}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	if _, err := n.runtime.RemovePodSandbox(t.Context(), &criapi.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
		t.Fatal(err)
	}
}

// pull asks for an image that is imported and must not be looked for elsewhere.
func (n *node) pull(t *testing.T, name string) string {
	t.Helper()
	spec := &criapi.ImageSpec{Image: name}
	answer, err := n.images.PullImage(t.Context(), &criapi.PullImageRequest{Image: spec}, grpc.WaitForReady(true))
	if err == nil {
		return answer.ImageRef
	}
	return n.imageID(t, name) // it was there before the pull, which found no registry
}

func (n *node) imageID(t *testing.T, name string) string {
	t.Helper()
	status, err := n.images.ImageStatus(t.Context(), &criapi.ImageStatusRequest{Image: &criapi.ImageSpec{Image: name}})
	if err != nil {
		t.Fatal(err)
	}
	return status.GetImage().GetId()
}

func (n *node) removeImage(t *testing.T, name string) {
	t.Helper()
	if _, err := n.images.RemoveImage(t.Context(), &criapi.RemoveImageRequest{Image: &criapi.ImageSpec{Image: name}}); err != nil {
		t.Fatal(err)
	}
}

func (n *node) list(t *testing.T) []runtime.Image {
	t.Helper()
	list, err := runtime.List(t.Context(), n.config.Socket)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// lockedBuffer is a buffer that a process's output is copied into.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (b *lockedBuffer) Len() int { return len(b.String()) }

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
