// Package datadir names every path that clusterd uses on disk.
//
// No other package spells one out, so that what an installation is made of can
// be read (and removed) from here. Several instances with different roots share
// no path and can run on one host. Making a Dir touches nothing; Prepare makes
// the directories and Lock claims them for one process.
package datadir

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
)

// The places that do not follow the data directory.
const (
	// DefaultRoot is the data directory when the user names none.
	DefaultRoot = "/var/lib/clusterd"
	// ConfigFile holds flags as YAML; files in ConfigFile + ".d" are read after it.
	ConfigFile = "/etc/clusterd/config.yaml"
	// Kubeconfig is the administrator's, written unless the user names another.
	Kubeconfig = "/etc/clusterd/kubeconfig.yaml"
	// Registries says which mirrors and credentials image pulls use.
	Registries = "/etc/clusterd/registries.yaml"

	// NetNS is where the host's tools, ip among them, mount network namespaces.
	NetNS = "/run/netns"

	defaultRunDir  = "/run/clusterd"
	defaultPodLogs = "/var/log/pods"
)

// Dir is the paths of one instance. Make it with New.
type Dir struct {
	root, run string
}

// New returns the paths under root, which it makes absolute. It does no other
// I/O than asking for the working directory when root is relative.
func New(root string) (Dir, error) {
	if root == "" {
		return Dir{}, errors.New("the data directory has no name")
	}
	abs, err := filepath.Abs(root)
	if err != nil {
		return Dir{}, fmt.Errorf("locate data directory %s: %w", root, err)
	}
	return Dir{root: abs, run: runDir(abs)}, nil
}

// runDir is apart for each root, and short: a unix socket's path holds 107 bytes.
func runDir(root string) string {
	if root == DefaultRoot {
		return defaultRunDir
	}
	sum := sha256.Sum256([]byte(root))
	return defaultRunDir + "-" + hex.EncodeToString(sum[:4])
}

func (d Dir) server(elem ...string) string {
	return filepath.Join(append([]string{d.root, "server"}, elem...)...)
}

func (d Dir) agent(elem ...string) string {
	return filepath.Join(append([]string{d.root, "agent"}, elem...)...)
}

// Root is the data directory itself, absolute.
func (d Dir) Root() string { return d.root }

// RunDir holds what is gone after a reboot: sockets and containerd's state.
func (d Dir) RunDir() string { return d.run }

// LockFile is locked by the process that uses the data directory and holds its
// process ID.
func (d Dir) LockFile() string { return filepath.Join(d.root, "lock") }

// Payload is where the embedded programs are extracted, by content hash.
func (d Dir) Payload() string { return filepath.Join(d.root, "data") }

// ServerTLS holds the CAs, the service-account key and the control plane's
// certificates.
func (d Dir) ServerTLS() string { return d.server("tls") }

// DB is the datastore's file; its directory holds the write-ahead log beside it.
func (d Dir) DB() string { return d.server("db", "state.db") }

// DBVersion is the file with the version of clusterd that had the datastore last.
func (d Dir) DBVersion() string { return d.server("db", "version") }

// Snapshots is the default directory of snapshots.
func (d Dir) Snapshots() string { return d.server("db", "snapshots") }

// SnapshotSocket is where the running server takes orders for snapshots. Its
// directory is root's alone.
func (d Dir) SnapshotSocket() string { return filepath.Join(d.run, "server", "snapshot.sock") }

// Unpacked is where the restore of a snapshot prepares what it will put in place.
func (d Dir) Unpacked() string { return d.server("restore.part") }

// Restored is what an interrupted restore has still to put in place.
func (d Dir) Restored() string { return d.server("restore") }

// ServerToken is the file with the token that lets nodes join.
func (d Dir) ServerToken() string { return d.server("token") }

// NodeToken is the file with the token as a joining node is given it.
func (d Dir) NodeToken() string { return d.server("node-token") }

// AgentCopies and ServerCopies are the directories of second copies of what cannot
// be made again.
func (d Dir) AgentCopies() string  { return d.agent("tls", "copies") }
func (d Dir) ServerCopies() string { return d.server("tls", "copies") }

// ServerJoinToken is the file with the token as a further server is given it.
func (d Dir) ServerJoinToken() string { return d.server("server-token") }

// Manifests is where the user puts objects that the server keeps applied.
func (d Dir) Manifests() string { return d.server("manifests") }

// AgentTLS holds the node's client and serving certificates.
func (d Dir) AgentTLS() string { return d.agent("tls") }

// WireGuardKey is the file with the node's private key for packets between nodes.
func (d Dir) WireGuardKey() string { return d.agent("tls", "wireguard.key") }

// Joined is what the node knows of the cluster it has joined.
func (d Dir) Joined() string { return d.agent("cluster.json") }

// NodeName is the file with the name that the node has had since it was made.
func (d Dir) NodeName() string { return d.agent("node-name") }

// NodeCertificates are those that are made out to the node by its name, of a
// joined node and of one in a server's process.
func (d Dir) NodeCertificates() []string {
	return []string{filepath.Join(d.AgentTLS(), "client-kubelet.crt"), filepath.Join(d.ServerTLS(), "serving-kubelet.crt")}
}

// KubeletCerts is the kubelet's own certificate directory.
func (d Dir) KubeletCerts() string { return d.agent("tls", "kubelet") }

// ProxyKubeconfig is how the service proxy reaches the API server.
func (d Dir) ProxyKubeconfig() string { return d.agent("tls", "kube-proxy.yaml") }

// KubeletRoot is the kubelet's root directory: volumes, plugins, checkpoints.
func (d Dir) KubeletRoot() string { return d.agent("kubelet") }

// VolumePlugins is where the kubelet and the controllers look for FlexVolume
// drivers. Upstream's own place is in /usr, and made when it is missing.
func (d Dir) VolumePlugins() string { return d.agent("volume-plugins") }

// PodManifests is the default directory of static pods.
func (d Dir) PodManifests() string { return d.agent("pod-manifests") }

// PodLogs is where container logs are: the usual place for the default root,
// since log collectors look there, and inside the data directory otherwise.
func (d Dir) PodLogs() string {
	if d.root == DefaultRoot {
		return defaultPodLogs
	}
	return d.agent("pod-logs")
}

// ContainerdRoot holds images, snapshots and containerd's metadata.
func (d Dir) ContainerdRoot() string { return d.agent("containerd") }

// ContainerdState holds containerd's and the shims' run-time state.
func (d Dir) ContainerdState() string { return filepath.Join(d.run, "containerd") }

// ContainerdSocket serves containerd's API and CRI.
func (d Dir) ContainerdSocket() string { return filepath.Join(d.ContainerdState(), "containerd.sock") }

// PodNetNS is where containerd's CRI plugin mounts the network namespaces of
// pods when it is told to keep them below its state directory.
func (d Dir) PodNetNS() string {
	return filepath.Join(d.ContainerdState(), "io.containerd.grpc.v1.cri", "netns")
}

// Images is where the user puts image archives that are imported at start.
func (d Dir) Images() string { return d.agent("images") }

// ResolvConf is the file with the host's real resolvers, kept for pods.
func (d Dir) ResolvConf() string { return filepath.Join(d.run, "resolv.conf") }

// CNIConf holds the one network configuration that containerd reads.
func (d Dir) CNIConf() string { return d.agent("cni") }

// CNISocket is where the CNI endpoint binary finds the agent.
func (d Dir) CNISocket() string { return filepath.Join(d.run, "cni.sock") }

// NetworkState holds which address belongs to which pod sandbox.
func (d Dir) NetworkState() string { return d.agent("network") }

// Ledger lists what was made outside of the data directory.
func (d Dir) Ledger() string { return filepath.Join(d.root, "ledger") }

// Own are all directories in the data directory that clusterd makes.
func (d Dir) Own() []string { return []string{d.server(), d.agent(), d.Payload()} }

// PodLogsOutside is whether container logs are outside of the data directory.
func (d Dir) PodLogsOutside() bool { return d.PodLogs() == defaultPodLogs }

// ReadyFile holds the process ID of a clusterd whose node is Ready.
func (d Dir) ReadyFile() string { return filepath.Join(d.run, "ready") }
