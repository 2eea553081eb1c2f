package upstream_test

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/clusterd/clusterd/internal/upstream"
)

func TestTakeShared(t *testing.T) {
	var s upstream.Shared
	rest, err := s.TakeShared("kubelet-arg", []string{"max-pods=50", "feature-gates=A=true,B=false", "--v=4"})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Join(rest, " ") != "max-pods=50" || !s.Gates["A"] || s.Gates["B"] || len(s.Gates) != 2 || s.Verbosity != 4 {
		t.Errorf("rest %v, shared %+v", rest, s)
	}
	_, err = s.TakeShared("kube-proxy-arg", []string{"feature-gates=B=true", "v=loud", "feature-gates=C"})
	for _, want := range []string{"--kube-proxy-arg feature-gates=B=true: the feature gate B is set to true, but to false by --kubelet-arg feature-gates=A=true,B=false: all", "v=loud: not a number", "feature-gates=C"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}

// TestGatesOfFiles has gates in a component's configuration file: they count like those of its flag, which wins over them.
func TestGatesOfFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(file, []byte("kind: KubeletConfiguration\nfeatureGates: {A: true, B: false, C: true}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var s upstream.Shared
	rest, err := s.TakeShared("kubelet-arg", []string{"feature-gates=B=true", "config=" + file})
	if err != nil || strings.Join(rest, " ") != "config="+file {
		t.Errorf("rest %v, %v", rest, err)
	}
	if want := map[string]bool{"A": true, "B": true, "C": true}; !maps.Equal(s.Gates, want) {
		t.Errorf("gates %v, want %v", s.Gates, want)
	}
	_, err = s.TakeShared("kube-apiserver-arg", []string{"feature-gates=A=true,C=false"})
	want := "--kube-apiserver-arg feature-gates=A=true,C=false: the feature gate C is set to false, but to true by " + file + " (--kubelet-arg config): all components share one set of gates"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, err := s.TakeShared("kube-scheduler-arg", []string{"config=" + filepath.Dir(file)}); err != nil {
		t.Errorf("a file that cannot be read is the component's to report, got %v", err)
	}
}

func TestParse(t *testing.T) {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	port := fs.Int("secure-port", 1, "")
	plugins := fs.StringSlice("plugins", nil, "")
	on := fs.Bool("on", false, "")
	if err := upstream.Parse(fs, "x-arg", []string{"secure-port=2", "plugins=a"}, []string{"secure_port=3", "--plugins=b", "on"}); err != nil {
		t.Fatal(err)
	}
	if *port != 3 || strings.Join(*plugins, ",") != "a,b" || !*on {
		t.Errorf("port %d, plugins %v, on %t", *port, *plugins, *on)
	}
	err := upstream.Parse(fs, "x-arg", nil, []string{"secure-port=x", "nonsense=1"})
	for _, want := range []string{"--x-arg secure-port=x:", `--x-arg nonsense=1: the component has no flag "nonsense"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}

// TestSetup is one test, since what it sets is for the whole process.
func TestSetup(t *testing.T) {
	var out bytes.Buffer
	t.Setenv("NOTIFY_SOCKET", "/nowhere")
	var reason string
	c := upstream.Config{Log: slog.New(slog.NewTextHandler(&out, nil)), Exit: func(r string) { reason = r }}
	if err := upstream.Setup(c); err != nil {
		t.Fatal(err)
	}
	lines := func() string { s := out.String(); out.Reset(); return s }

	klog.ErrorS(errors.New("not there yet"), "while starting")
	if s := lines(); s != "" {
		t.Errorf("a complaint during the start is shown: %s", s)
	}
	upstream.Settle(0)
	klog.InfoS("information")
	klog.ErrorS(errors.New("broken"), "complaint")
	klog.ErrorS(errors.New("broken"), "complaint")
	klog.ErrorS(errors.New("broken otherwise"), "complaint")
	klog.ErrorS(errors.New("pod 6eb7ad55-0401-4fd4-8f0e-e8a3fbbcb4e1 attempt 1"), "complaint of one")
	klog.ErrorS(errors.New("pod 0a1b2c3d-0401-4fd4-8f0e-e8a3fbbcb4e1 attempt 2"), "complaint of one")
	if s := lines(); strings.Count(s, "level=WARN") != 3 || strings.Contains(s, "information") {
		t.Errorf("want three warnings, got: %s", s)
	}
	klog.ErrorS(errors.New("sync failed: read version: 1 is not as new as written version: 2"), "Unhandled Error")
	klog.ErrorS(errors.New("failed to patch node CIDR: Node \"n\" is invalid: spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid"), "Failed to update node PodCIDR after multiple attempts")
	if s := lines(); s != "" {
		t.Errorf("what is expected is shown: %s", s)
	}
	gone := "rpc error: code = Unknown desc = container is not running"
	klog.ErrorS(errors.New(gone), "ReopenContainerLog from runtime service failed", "containerID", "a")
	klog.ErrorS(errors.New(`partial failures: ["/kubepods/x": ...]`), "Partial failure issuing cadvisor.ContainerInfoV2")
	if s := lines(); s != "" {
		t.Errorf("what is said of a container that has just ended is shown: %s", s)
	}
	klog.ErrorS(errors.New("rpc error: code = Unknown desc = disk full"), "ReopenContainerLog from runtime service failed")
	klog.ErrorS(errors.New(gone), "Something else failed")
	if s := lines(); strings.Count(s, "level=WARN") != 2 {
		t.Errorf("what is alike in part is hidden: %s", s)
	}
	logrus.Info("detail")
	logrus.Warn("from logrus")
	if s := lines(); !strings.Contains(s, "from logrus") || strings.Contains(s, "detail") {
		t.Errorf("logrus gives: %s", s)
	}
	klog.OsExit(255)
	if !strings.Contains(reason, "255") {
		t.Errorf("exit reason is %q", reason)
	}
	upstream.Stopping()
	klog.ErrorS(errors.New("gone"), "while stopping")
	if s := lines(); s != "" {
		t.Errorf("a complaint during the stop is shown: %s", s)
	}
	c.Gates = map[string]bool{"NoSuchGate": true} // last: upstream does not forget it
	if err := upstream.Setup(c); err == nil || !strings.Contains(err.Error(), "NoSuchGate") {
		t.Errorf("an unknown gate gives %v", err)
	}
}
