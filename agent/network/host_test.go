package network

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestModuleFiles(t *testing.T) {
	root := t.TempDir()
	dep := "kernel/net/llc/llc.ko.xz:\n" +
		"kernel/net/bridge/br_netfilter.ko.xz: kernel/net/bridge/bridge.ko.xz kernel/net/802/stp.ko.xz kernel/net/llc/llc.ko.xz\n" +
		"kernel/net/foo/dash-ed.ko:\n"
	if err := os.WriteFile(filepath.Join(root, "modules.dep"), []byte(dep), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		want []string
	}{
		{"br_netfilter", []string{"kernel/net/llc/llc.ko.xz", "kernel/net/802/stp.ko.xz", "kernel/net/bridge/bridge.ko.xz", "kernel/net/bridge/br_netfilter.ko.xz"}},
		{"dash_ed", []string{"kernel/net/foo/dash-ed.ko"}},
		{"missing", nil},
	} {
		got, err := moduleFiles(root, c.name)
		if !slices.Equal(got, c.want) || (err == nil) != (c.want != nil) {
			t.Errorf("%s: got %v %v, want %v", c.name, got, err, c.want)
		}
	}
	if err := loadModule(filepath.Join(root, "none"), "br_netfilter"); err == nil {
		t.Error("loaded a module from a directory that is not there")
	}
}

func TestKeepRouterAdvertisements(t *testing.T) {
	root := t.TempDir()
	want := map[string]string{"eth0": "2", "off": "0", "set": "2"}
	for name, value := range map[string]string{"eth0": "1\n", "off": "0\n", "set": "2\n"} {
		dir := filepath.Join(root, "ipv6/conf", name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "accept_ra"), []byte(value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := keepRouterAdvertisements(root); err != nil {
		t.Fatal(err)
	}
	for name, value := range want {
		data, err := os.ReadFile(filepath.Join(root, "ipv6/conf", name, "accept_ra"))
		if err != nil || strings.TrimSpace(string(data)) != value {
			t.Errorf("%s has accept_ra %q %v, want %s", name, data, err, value)
		}
	}
}
