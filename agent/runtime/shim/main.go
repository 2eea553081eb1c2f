// Command shim is containerd's shim for runc, one process a pod. It is an
// executable of its own, and not clusterd under another name, because every pod
// would otherwise pay for the initialisation of all of Kubernetes.
//
// Pods have the kernel's timer slack, and not the one that clusterd, which starts the shim, gives itself.
package main

import (
	"context"

	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task/plugin"
	"github.com/containerd/containerd/v2/pkg/shim"

	"github.com/clusterd/clusterd/internal/timerslack"
)

func main() {
	timerslack.Standard() //nolint:errcheck // fails where the kernel knows no slack, or forbids clusterd too to change it
	shim.RunShim(context.Background(), manager.NewShimManager("io.containerd.runc.v2"))
}
