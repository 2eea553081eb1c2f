package controllers

import (
	"testing"

	"k8s.io/kubernetes/pkg/volume/csi"
	"k8s.io/kubernetes/pkg/volume/csi/nodeinfomanager"
	volumetest "k8s.io/kubernetes/pkg/volume/testing"
)

// TestCSIState fails when upstream's plugin keeps its state elsewhere, or of another type.
func TestCSIState(t *testing.T) {
	before := keepCSI()
	t.Cleanup(func() { nim, *csi.PluginHandler = before.nim, before.handler })
	plugin := func() {
		host := volumetest.NewFakeVolumeHost(t, t.TempDir(), nil, nil)
		if err := csi.ProbeVolumePlugins()[0].Init(host); err != nil {
			t.Fatal(err)
		}
	}
	nim = nil
	plugin()
	first := keepCSI()
	if first.nim == nil || first.handler == before.handler {
		t.Fatal("a host of the plugin is not seen")
	}
	plugin()
	if nim == first.nim || *csi.PluginHandler == first.handler {
		t.Fatal("another host of the plugin is not seen")
	}
	first.restore()
	if nim != first.nim || *csi.PluginHandler != first.handler {
		t.Error("the first host of the plugin is not there again")
	}
	var _ nodeinfomanager.Interface = nim
}
