package main

import (
	"context"
	"crypto"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"
)

// nodeRoles are those of identities that a machine has that is a node alone.
var nodeRoles = []string{"node", "proxy"}

// join starts what a node alone runs, in dir, and returns when ctx is done and the processes have ended. server is the
// address of the API server; authorities is a directory with server-ca.crt, client-ca.crt and client-ca.key.
func join(ctx context.Context, dir, server, authorities string, images []string) error {
	m, err := newMachine(dir)
	if err != nil {
		return err
	}
	ip := net.ParseIP(server)
	if ip == nil {
		return fmt.Errorf("join %q: not an IP address", server)
	}
	if err := m.prepareNode(ip, authorities); err != nil {
		return fmt.Errorf("prepare %s: %w", m.dir, err)
	}
	m.began = time.Now()
	defer m.stop()
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := m.startNode(starting, images); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func (m *machine) startNode(ctx context.Context, images []string) error {
	if err := os.RemoveAll(m.path("containerd.sock")); err != nil {
		return err
	}
	if err := m.spawn("containerd", "containerd", "-c", m.path("containerd.toml")); err != nil {
		return err
	}
	if err := m.importImages(ctx, images); err != nil {
		return err
	}
	return errors.Join(
		m.component("kubelet", kubeletArgs(m.path, m.ip)),
		m.component("kube-proxy", []string{"--config=" + m.path("proxy-config.yaml")}),
	)
}

// prepareNode writes the configuration and, from the cluster's authorities, the certificates.
func (m *machine) prepareNode(server net.IP, authorities string) error {
	bin := filepath.Dir(m.self)
	if err := os.Setenv("PATH", bin+":"+os.Getenv("PATH")); err != nil {
		return err
	}
	if _, err := os.Stat(m.path("node.yaml")); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(m.path("cni"), 0o755); err != nil {
		return err
	}
	if err := writeConfigs(m.dir, filepath.Join(filepath.Dir(bin), "cni")); err != nil {
		return err
	}
	return m.writeNodePKI(server, authorities)
}

func (m *machine) writeNodePKI(server net.IP, authorities string) error {
	pair, err := tls.LoadX509KeyPair(filepath.Join(authorities, "client-ca.crt"), filepath.Join(authorities, "client-ca.key"))
	if err != nil {
		return err
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return errors.New("the key of client-ca cannot sign")
	}
	var trusted []byte // the API server is checked by the one, who comes to the kubelet by the other
	for _, name := range []string{"server-ca.crt", "client-ca.crt"} {
		pem, err := os.ReadFile(filepath.Join(authorities, name))
		if err != nil {
			return err
		}
		trusted = append(trusted, pem...)
	}
	if err := writeFile(m.dir, "ca.crt", trusted); err != nil {
		return err
	}
	for _, id := range identities(m.host) {
		for _, role := range nodeRoles {
			if id.file != role {
				continue
			}
			if _, err := issue(m.dir, id, &authority{pair.Leaf, key}, m.ip); err != nil {
				return err
			}
			if err := writeFile(m.dir, id.file+".yaml", kubeconfig(m.dir, id.file, server)); err != nil {
				return err
			}
		}
	}
	return nil
}
