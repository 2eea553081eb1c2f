package controllers

import (
	"context"
	"time"
	_ "unsafe" // for go:linkname

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/kubernetes/pkg/volume/csi"
	"k8s.io/kubernetes/pkg/volume/csi/nodeinfomanager"
)

// nim is what upstream's CSI volume plugin registers drivers with. Each host of the plugin replaces it: the kubelet, which
// needs it, and some of the controllers, which do not but would leave the kubelet with one that knows no node. The linker does
// not compare the types: TestCSIState does.
//
//go:linkname nim k8s.io/kubernetes/pkg/volume/csi.nim
var nim nodeinfomanager.Interface

// csiState is what the plugin has process-wide.
type csiState struct {
	nim     nodeinfomanager.Interface
	handler csi.RegistrationHandler
}

func keepCSI() csiState { return csiState{nim, *csi.PluginHandler} }

// restore gives back what was there before the controllers were made. When nothing was, the kubelet is made after them.
func (s csiState) restore() {
	if s.nim != nil {
		nim, *csi.PluginHandler = s.nim, s.handler
	}
}

// A kubelet that is being made gets to the plugin in a second or two.
const (
	kubeletPatience = 30 * time.Second
	kubeletLook     = 100 * time.Millisecond
)

// awaitKubelet waits until the kubelet of this process has its plugin.
func awaitKubelet(ctx context.Context) {
	_ = wait.PollUntilContextTimeout(ctx, kubeletLook, kubeletPatience, true, func(context.Context) (bool, error) { return nim != nil, nil })
}
