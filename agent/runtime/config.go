package runtime

import (
	"path/filepath"

	srvconfig "github.com/containerd/containerd/v2/cmd/containerd/server/config"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/version"
	"github.com/containerd/platforms"
)

// Periods at which containerd collects what hardly anybody reads.
const (
	// Every task's CPU use, by a call to each shim, for the UsageNanoCores of CRI
	// statistics. The default is a second. The kubelet takes these figures from
	// cAdvisor unless PodAndContainerStatsFromCRI is on; kubectl top is that much
	// behind then, and UsageCoreNanoSeconds is read when it is asked for.
	taskStatsPeriod    = "120s"
	taskStatsRetention = "360s" // a rate needs two samples
	// The size of every snapshot, in seconds. The default is 10.
	snapshotStatsPeriod = 30
)

// containerd's plugin URIs.
const (
	criPlugin        = "io.containerd.grpc.v1.cri"
	criImagesPlugin  = "io.containerd.cri.v1.images"
	criRuntimePlugin = "io.containerd.cri.v1.runtime"
	shimPlugin       = "io.containerd.shim.v1.manager"
	taskPlugin       = "io.containerd.runtime.v2.task"
	ttrpcPlugin      = "io.containerd.server.v1.ttrpc"
	grpcPlugin       = "io.containerd.server.v1.grpc"
	apiPlugin        = "io.containerd.server.v1.clusterd"
)

// containerdConfig is what a containerd daemon would read from its config.toml.
func (c Config) containerdConfig(snapshotter string) *srvconfig.Config {
	return &srvconfig.Config{
		Version: version.ConfigVersion,
		Root:    c.Root,
		State:   c.State,
		// Everything else may fail and be reported as such.
		RequiredPlugins: []string{criPlugin, taskPlugin, ttrpcPlugin, apiPlugin},
		DisabledPlugins: []string{upstreamTransferPlugin},
		Plugins: map[string]any{
			criImagesPlugin: map[string]any{
				"snapshotter":          snapshotter,
				"pinned_images":        map[string]any{"sandbox": c.PauseImage},
				"stats_collect_period": snapshotStatsPeriod,
			},
			criRuntimePlugin: c.criRuntimeConfig(),
			criPlugin: map[string]any{
				"stream_server_address": "127.0.0.1",
				"stream_server_port":    "0",
			},
			ownTransferPlugin: map[string]any{
				"unpack_config": []map[string]any{{
					"platform": platforms.Format(platforms.DefaultSpec()), "snapshotter": snapshotter, "differ": defaults.DefaultDiffer,
				}},
			},
			shimPlugin:  map[string]any{"socket_dir": filepath.Join(c.State, "s")},
			ttrpcPlugin: map[string]any{"address": c.Socket + ".ttrpc"},
			// Not a server of ours, but shims and CRI are told the address.
			grpcPlugin: map[string]any{"address": c.Socket},
		},
	}
}

func (c Config) criRuntimeConfig() map[string]any {
	return map[string]any{
		"containerd": map[string]any{
			"default_runtime_name": "runc",
			"runtimes": map[string]any{
				"runc": map[string]any{
					// By name, found in PATH: for a runtime with a path containerd asks
					// the shim at each container which mounts it handles itself.
					"runtime_type": "io.containerd.runc.v2",
					"sandboxer":    "podsandbox",
					"options": map[string]any{
						"BinaryName":    c.Bundle.Runc,
						"Root":          filepath.Join(c.State, "runc"),
						"SystemdCgroup": c.SystemdCgroup,
					},
				},
			},
		},
		"cni": map[string]any{
			"bin_dirs":              []string{c.Bundle.CNIBin},
			"conf_dir":              c.CNIConfDir,
			"use_internal_loopback": true,
		},
		"restrict_oom_score_adj": c.RestrictOOMScoreAdj,
		// Below State, so that nobody's first "ip netns add", which makes
		// /run/netns a mount of its own, can hide a pod's network namespace.
		"netns_mounts_under_state_dir": true,
		"stats_collect_period":         taskStatsPeriod,
		"stats_retention_period":       taskStatsRetention,
	}
}
