// Package lab gives Go code the machines that scripts/lab makes: a Node is a network, process and mount namespace with a
// cgroup subtree, on a bridge that leads nowhere. Commands, listeners and connections can be had inside it. It needs
// root, and works on Linux only.
package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// defaultDir is where scripts/lab keeps its nodes unless LAB_DIR says otherwise.
const defaultDir = "/var/tmp/clusterd-lab"

// Lab is a set of nodes on one bridge. Labs whose directories have different last parts do not see each other.
type Lab struct {
	script, dir string
}

// New returns the lab kept in dir, which $LAB_DIR overrides; an empty dir means the default of scripts/lab. It makes
// nothing yet.
func New(dir string) (*Lab, error) {
	if d := os.Getenv("LAB_DIR"); d != "" {
		dir = d
	}
	if dir == "" {
		dir = defaultDir
	}
	root, err := sourceRoot()
	if err != nil {
		return nil, err
	}
	return &Lab{script: filepath.Join(root, "scripts", "lab"), dir: dir}, nil
}

// sourceRoot finds the tree that holds scripts/lab, going up from the working directory.
func sourceRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "scripts", "lab")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("find scripts/lab at or above %s: %w", dir, os.ErrNotExist)
		}
	}
}

// Hub is the namespace of the bridge that joins the nodes. It has the address HubAddress and stands for everything that
// is not the cluster: an upstream resolver, a client on the network.
func (l *Lab) Hub() Namespace { return Namespace("/run/netns/" + filepath.Base(l.dir) + "-hub") }

// HubAddress is the hub's address on the lab's network, and every node's default gateway.
const HubAddress = "10.77.0.1"

// Up makes a node, after removing one of the same name that an earlier run left.
func (l *Lab) Up(ctx context.Context, name string) (*Node, error) {
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(l.dir, name)); err == nil {
		if _, err := l.run(ctx, "down", name); err != nil {
			return nil, err
		}
	}
	addr, err := l.run(ctx, "up", name)
	if err != nil {
		return nil, err
	}
	pid, err := l.run(ctx, "pid", name)
	if err != nil {
		return nil, err
	}
	return &Node{lab: l, name: name, addr: addr, pid: pid}, nil
}

// Clean removes the lab with all its nodes.
func (l *Lab) Clean(ctx context.Context) error {
	_, err := l.run(ctx, "clean")
	return err
}

// run calls scripts/lab and returns what it printed. The node's first process keeps the script's streams, so they must
// be files that Wait does not wait for.
func (l *Lab) run(ctx context.Context, args ...string) (string, error) {
	c := exec.CommandContext(ctx, l.script, args...)
	c.Env = append(os.Environ(), "LAB_DIR="+l.dir)
	out, err := c.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("scripts/lab %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Node is one machine of a lab.
type Node struct {
	lab             *Lab
	name, addr, pid string
}

// Name is the node's name in the lab and its host name.
func (n *Node) Name() string { return n.name }

// Addr is the node's IPv4 address on the lab's network.
func (n *Node) Addr() string { return n.addr }

// Path is where the machine sees the node's file of the given absolute path.
func (n *Node) Path(inside string) string { return filepath.Join("/proc", n.pid, "root", inside) }

// Network is the node's network namespace.
func (n *Node) Network() Namespace { return Namespace("/proc/" + n.pid + "/ns/net") }

// PIDNamespace identifies the node's process namespace as readlink shows it in /proc/PID/ns/pid.
func (n *Node) PIDNamespace() (string, error) { return os.Readlink("/proc/" + n.pid + "/ns/pid") }

// Command is a command to run in the node. Killing it kills only the process that entered the node, not the command: use
// Start where that matters.
func (n *Node) Command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, n.lab.script, append([]string{"exec", n.name}, args...)...)
	c.Env = append(os.Environ(), "LAB_DIR="+n.lab.dir)
	return c
}

// Output runs a command in the node and returns both its streams; the error has them too.
func (n *Node) Output(ctx context.Context, args ...string) (string, error) {
	out, err := n.Command(ctx, args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), err
}

// Cut takes the node's cable out: packets vanish, in both directions.
func (n *Node) Cut(ctx context.Context) error {
	_, err := n.lab.run(ctx, "cut", n.name)
	return err
}

// Heal puts the cable back.
func (n *Node) Heal(ctx context.Context) error {
	_, err := n.lab.run(ctx, "heal", n.name)
	return err
}

// Move gives the node another address on the lab's network. Addr is that from then on.
func (n *Node) Move(ctx context.Context, address string) error {
	if _, err := n.lab.run(ctx, "move", n.name, address); err != nil {
		return err
	}
	n.addr = address
	return nil
}

// Down ends everything in the node and removes it with its data.
func (n *Node) Down(ctx context.Context) error {
	_, err := n.lab.run(ctx, "down", n.name)
	return err
}
