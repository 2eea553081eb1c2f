package datadir

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Prepare makes every directory that a node needs, and takes access by group and
// others away from those that hold secrets, also when they exist already. The
// roots stay open to traversal, since containers in user namespaces need it.
func (d Dir) Prepare() error {
	for _, dir := range d.open() {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	return makeSecrets(d.AgentTLS(), d.KubeletCerts(), d.PodManifests())
}

// PrepareServer is Prepare for a server. Manifests is only closed if it is
// there: what follows from it being missing, or no directory, is for the one who
// applies them to decide.
func (d Dir) PrepareServer() error {
	if err := d.Prepare(); err != nil {
		return err
	}
	if err := makeSecrets(d.server(), d.ServerTLS(), filepath.Dir(d.DB()), filepath.Dir(d.SnapshotSocket())); err != nil {
		return err
	}
	if info, err := os.Stat(d.Manifests()); err != nil || !info.IsDir() {
		return nil
	}
	return makeSecret(d.Manifests())
}

func makeSecrets(dirs ...string) error {
	for _, dir := range dirs {
		if err := makeSecret(dir); err != nil {
			return err
		}
	}
	return nil
}

// open lists the directories without secrets, parents first.
func (d Dir) open() []string {
	return []string{
		d.root, d.run, d.agent(),
		d.Payload(), d.Images(), d.CNIConf(), d.NetworkState(), d.PodLogs(),
		d.KubeletRoot(), d.VolumePlugins(), d.ContainerdRoot(), d.ContainerdState(),
	}
}

func makeSecret(dir string) error {
	const mode fs.FileMode = 0o700
	if err := os.MkdirAll(dir, mode); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("inspect directory: %w", err)
	}
	if info.Mode().Perm()&^mode == 0 {
		return nil
	}
	if err := os.Chmod(dir, mode); err != nil {
		return fmt.Errorf("close directory: %w", err)
	}
	return nil
}
