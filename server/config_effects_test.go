package server_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
