package server_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/validate/content"
	kubeletapis "k8s.io/kubelet/pkg/apis"

	"github.com/clusterd/clusterd/internal/config"
)

func TestTokenIsNotShown(t *testing.T) {
	_, err := parse(t, "--token=very secret")
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
}

func TestRelativePaths(t *testing.T) {
	t.Chdir(t.TempDir())
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := parse(t, "--data-dir=data", "--write-kubeconfig=k.yaml")
	if err != nil || cfg.DataDir != filepath.Join(wd, "data") || cfg.WriteKubeconfig != filepath.Join(wd, "k.yaml") {
		t.Errorf("got %s, %s, %v", cfg.DataDir, cfg.WriteKubeconfig, err)
	}
}

func TestNothingIsChanged(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if _, err := parse(t, "--data-dir="+dir, "--pod-manifest-path="+dir+"/pods", "--write-kubeconfig="+dir+"/k"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s was made: %v", dir, err)
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	write(t, file, "nodename: a\ncluster-cidr: 10.43.0.0/16")
	t.Setenv("CLUSTERD_LOG_FORMAT", "xml")
	_, err := parseWith(t, file, "--https-listen-port=0", "--node-label=a", "--node-label=b.kubernetes.io/c=d,e= f g", "--node-taint=h:i")
	var e *config.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v", err)
	}
	var got []string
	for _, p := range e.Problems {
		got = append(got, p.Error())
	}
	want := []string{
		file + ":1: nodename: unknown key, the nearest known one is node-name",
		`--node-label: "a" does not have the form key=value`,
		`--node-label: "b.kubernetes.io/c=d": a node may not give itself this label: of kubernetes.io and k8s.io only those of ` +
			`kubelet.kubernetes.io and node.kubernetes.io, and ` + strings.Join(kubeletapis.KubeletLabels(), ", "),
		`--node-label: "e= f g": the value " f g" is no label value: ` + content.IsLabelValue(" f g")[0],
		`--node-taint: "h:i": the effect "i" is not one of NoSchedule, PreferNoSchedule, NoExecute`,
		`CLUSTERD_LOG_FORMAT: "xml" is not one of text, json`,
		`--https-listen-port: "0" is not a port from 1 to 65535`,
		"--service-cidr: 10.43.0.0/16 overlaps the cluster-cidr 10.43.0.0/16",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
