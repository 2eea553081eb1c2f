// Command shim is containerd's shim for runc, one process a pod. It is an
// executable of its own, and not clusterd under another name, because every pod
// would otherwise pay for the initialisation of all of Kubernetes.
package main

import (
	"context"

	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task/plugin"
	"github.com/containerd/containerd/v2/pkg/shim"
)

func main() {
	shim.RunShim(context.Background(), manager.NewShimManager("io.containerd.runc.v2"))
}
