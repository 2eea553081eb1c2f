package network_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/clusterd/clusterd/agent/network"
	"github.com/clusterd/clusterd/internal/lifecycle"
)

// The tests run as a process of their own in a network and a mount namespace of
// its own, which plays the node. agentVar makes the process an agent of it.
const (
	nodeVar  = "CLUSTERD_TEST_NODE"
	agentVar = "CLUSTERD_TEST_AGENT"
)

func TestMain(m *testing.M) {
	switch {
	case os.Geteuid() != 0:
		fmt.Fprintln(os.Stderr, "the tests of agent/network drive the kernel's network: run them as root")
		os.Exit(1)
	case os.Getenv(agentVar) != "":
		os.Exit(agentMain(os.Getenv(agentVar)))
	case os.Getenv(nodeVar) == "":
		os.Exit(runAsNode())
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "set up the node's loopback:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func runAsNode() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), nodeVar+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL,
	}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil:
		fmt.Fprintln(os.Stderr, "start the tests in namespaces of their own:", err)
		return 1
	}
	return 0
}

// agentMain runs a Network on the node until it is killed or terminated.
func agentMain(dir string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c, err := componentIn(dir, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err == nil {
		err = c.Run(ctx, func() { fmt.Println("ready") })
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		return 1
	}
	return 0
}

// componentIn is a Network, and on a machine of a cluster its overlay too.
func componentIn(dir string, log *slog.Logger) (lifecycle.Component, error) {
	data, err := os.ReadFile(filepath.Join(dir, machineFile))
	if errors.Is(err, fs.ErrNotExist) {
		return network.New(configIn(dir), log)
	}
	var s settings
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		return nil, err
	}
	return s.component(dir, log)
}

var (
	podCIDR4 = netip.MustParsePrefix("10.42.7.0/24")
	podCIDR6 = netip.MustParsePrefix("fd42:0:0:7::/64")
)

// configIn is a configuration with everything in dir; what the runtime knows is
// in the file sandboxes.json there.
func configIn(dir string) network.Config {
	return network.Config{
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd42::/48")},
		StateDir:     filepath.Join(dir, "state"), Socket: filepath.Join(dir, "cni.sock"),
		CNIConfDir: filepath.Join(dir, "conf"), NetNSDir: filepath.Join(dir, "netns"),
		PodCIDRs:      func(context.Context) ([]netip.Prefix, error) { return []netip.Prefix{podCIDR4, podCIDR6}, nil },
		LiveSandboxes: func(context.Context) (map[string]string, error) { return readSandboxes(dir) },
	}
}

func readSandboxes(dir string) (map[string]string, error) {
	data, err := os.ReadFile(filepath.Join(dir, "sandboxes.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	live := map[string]string{}
	if err == nil {
		err = json.Unmarshal(data, &live)
	}
	return live, err
}
