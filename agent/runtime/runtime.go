// Package runtime runs containerd in the process: images, snapshots, containers
// and the CRI that the kubelet talks to, on one unix socket.
//
// It promises:
//
//   - The pause image is there before it is ready, so that no pod waits for a
//     registry; nothing is ever pulled for the node itself.
//
//   - Containers and their shims outlive it. Whoever starts it again with the
//     same Root and State finds them running.
//
//   - Nothing is written outside Root and State, except the pods' cgroups and
//     libcni's cache in /var/lib/cni.
//
//   - What a power cut has damaged of Root is made again.
//
// Why the shim and runc are executables of their own: the shim must outlive this
// process, one a pod, and should not carry Kubernetes along; runc has to set up
// namespaces before the Go runtime starts.
package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/clusterd/clusterd/agent/runtime/registries"
	"github.com/clusterd/clusterd/internal/bundle"
)

// DefaultPauseImage is the name of the image in the bundle.
const DefaultPauseImage = "registry.k8s.io/pause:3.10.2"

// Config says where containerd lives. Fields are required unless marked.
type Config struct {
	// Root keeps images, snapshots and metadata, State what a reboot may forget.
	// State must be short: the shims' sockets below it have names of 64
	// characters, and the kernel allows 107 for a path.
	Root, State string
	// Socket is made with mode 0600 and serves CRI and containerd's own API.
	Socket string
	// Bundle has the executables and the pause image.
	Bundle bundle.Paths
	// CNIConfDir is where the pod network puts its configuration, at any time.
	CNIConfDir string
	// Snapshotter is "overlayfs" or "native"; optional: the first that works on
	// the file system of Root.
	Snapshotter string
	// PauseImage is the image of pod sandboxes; optional: DefaultPauseImage.
	// Another one has to be pulled or be in ImagesDir.
	PauseImage string
	// RestrictOOMScoreAdj is needed without CAP_SYS_RESOURCE: containers then get
	// no lower OOM score than this process has.
	RestrictOOMScoreAdj bool
	// SystemdCgroup has systemd make the pods' cgroups.
	SystemdCgroup bool
	// ImagesDir holds image archives to import at start; optional.
	ImagesDir string
	// RegistriesFile is the registries.yaml; optional, and so is the file.
	RegistriesFile string
	// Debug logs what containerd calls information.
	Debug bool
}

// Runtime is containerd, a component.
type Runtime struct {
	cfg        Config
	log        *slog.Logger
	registries *registries.File
	host       *host
}

// New checks the configuration; it touches nothing.
func New(c Config, log *slog.Logger) (*Runtime, error) {
	if c.PauseImage == "" {
		c.PauseImage = DefaultPauseImage
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	file := registries.NewFile(c.RegistriesFile, log)
	return &Runtime{cfg: c, log: log, registries: file, host: newHost(file, log)}, nil
}

// shimName is the file name under which containerd looks for the shim.
const shimName = "containerd-shim-runc-v2"

// maxState is the longest State, in bytes, that leaves room for shim sockets.
const maxState = 40

func (c Config) validate() error {
	var errs []error
	for name, value := range map[string]string{
		"Root": c.Root, "State": c.State, "Socket": c.Socket, "CNIConfDir": c.CNIConfDir,
		"Bundle.Runc": c.Bundle.Runc, "Bundle.Shim": c.Bundle.Shim, "Bundle.CNIBin": c.Bundle.CNIBin, "Bundle.PauseImage": c.Bundle.PauseImage,
	} {
		if !filepath.IsAbs(value) {
			errs = append(errs, fmt.Errorf("runtime: %s %q is not an absolute path", name, value))
		}
	}
	if filepath.Base(c.Bundle.Shim) != shimName {
		errs = append(errs, fmt.Errorf("runtime: Bundle.Shim %q is not called %s", c.Bundle.Shim, shimName))
	}
	if len(c.State) > maxState {
		errs = append(errs, fmt.Errorf("runtime: State %q is longer than %d bytes", c.State, maxState))
	}
	if c.Snapshotter != "" && c.Snapshotter != overlayfs && c.Snapshotter != Native {
		errs = append(errs, fmt.Errorf("runtime: snapshotter %q is neither %s nor %s", c.Snapshotter, overlayfs, Native))
	}
	return errors.Join(errs...)
}

// Name implements lifecycle.Component.
func (r *Runtime) Name() string { return "runtime" }

// Run serves until ctx ends. It is ready when CRI answers and the pause image is
// there; archives in ImagesDir may still be on their way in, but a pull of an
// image waits for them. Containers are left running.
func (r *Runtime) Run(ctx context.Context, ready func()) error {
	if err := r.registries.Load(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil
	}
	snapshotter, err := r.chooseSnapshotter()
	if err != nil {
		return err
	}
	lost, err := r.heal()
	if err != nil {
		return err
	}
	stop, err := r.serve(ctx, snapshotter)
	if err != nil {
		return err
	}
	importing, err := r.takeIn(ctx, snapshotter, lost)
	if err == nil {
		ready()
		importing.start(ctx)
		err = r.wait(ctx)
		importing.wait()
	}
	return errors.Join(err, stop())
}

// takeIn makes the pause image available, after what was lost is forgotten.
func (r *Runtime) takeIn(ctx context.Context, snapshotter string, lost []digest.Digest) (*imports, error) {
	if err := r.forgetLost(ctx, lost); err != nil {
		return nil, err
	}
	return r.importPause(ctx, snapshotter)
}

// wait blocks until ctx ends or containerd gives up.
func (r *Runtime) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-r.host.failed:
		return err
	}
}

// Sandboxes returns the network namespace path of every pod sandbox that has one
// of its own, by sandbox ID, whether the sandbox is still alive or not. It may
// be called once the runtime is ready.
func (r *Runtime) Sandboxes(ctx context.Context) (map[string]string, error) {
	conn, err := dial(r.cfg.Socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	cri := criapi.NewRuntimeServiceClient(conn)
	list, err := cri.ListPodSandbox(ctx, &criapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("list pod sandboxes: %w", err)
	}
	paths := make(map[string]string, len(list.Items))
	for _, sandbox := range list.Items {
		answer, err := cri.PodSandboxStatus(ctx, &criapi.PodSandboxStatusRequest{PodSandboxId: sandbox.Id, Verbose: true})
		if status.Code(err) == codes.NotFound {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("get status of pod sandbox %s: %w", sandbox.Id, err)
		}
		path, err := netNSPath(answer)
		if err != nil {
			return nil, fmt.Errorf("read status of pod sandbox %s: %w", sandbox.Id, err)
		}
		if path != "" {
			paths[sandbox.Id] = path
		}
	}
	return paths, nil
}

// netNSPath reads the path from the verbose part of a status; it is empty for a
// sandbox in the host's network.
func netNSPath(answer *criapi.PodSandboxStatusResponse) (string, error) {
	if answer.GetStatus().GetLinux().GetNamespaces().GetOptions().GetNetwork() == criapi.NamespaceMode_NODE {
		return "", nil
	}
	var info struct {
		Sandbox *struct {
			Metadata struct{ NetNSPath string }
		} `json:"sandboxMetadata"`
	}
	if err := json.Unmarshal([]byte(answer.GetInfo()["info"]), &info); err != nil {
		return "", err
	}
	if info.Sandbox == nil {
		return "", errors.New("no sandbox metadata")
	}
	return info.Sandbox.Metadata.NetNSPath, nil
}
