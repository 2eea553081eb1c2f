// Package bundle carries what clusterd needs on disk as separate executables:
// runc, the runc shim, the CNI endpoint and the pause image. scripts/build
// embeds them compressed; Extract puts them below the data directory, in one
// directory named by the hash of its contents.
//
// Why by hash: shims outlive the clusterd that started them and run their own
// executable and runc again and again. An upgrade therefore adds a directory and
// leaves the old one to the shims that still use it.
package bundle

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/clusterd/clusterd/internal/bundle/archive"
)

// The folder has a README only until scripts/build has made the payload.
//
//go:embed payload
var embedded embed.FS

// ErrNoPayload says that this executable was linked without scripts/build.
var ErrNoPayload = errors.New("this executable carries no payload (runc, shim, CNI endpoint, pause image): build it with scripts/build")

// Paths of the files in the payload, as scripts/build names them.
const (
	runcName  = "runc"
	shimName  = "containerd-shim-runc-v2"
	cniName   = "cni"
	pauseName = "pause.tar"
)

// nameDigits is how much of the hash names the directory: enough to tell
// payloads apart, short enough to read in a process list.
const nameDigits = 16

// Paths says where the payload's files are; all are absolute if the directory
// given to Extract was.
type Paths struct {
	// Runc and Shim are executables.
	Runc, Shim string
	// CNIBin is the directory with the CNI endpoint.
	CNIBin string
	// PauseImage is an image archive (OCI layout in a tar).
	PauseImage string
}

// Extract makes sure that the embedded payload is complete below dir and removes
// other payloads there that no running process uses. A copy that is already
// complete is left alone and costs a few lstat calls. The error is ErrNoPayload
// when this executable carries none.
func Extract(dir string) (Paths, error) {
	payload, err := fs.Sub(embedded, "payload")
	if err != nil {
		return Paths{}, err
	}
	return ExtractFrom(payload, dir)
}

// Locate says where Extract puts the payload. It changes nothing.
func Locate(dir string) (Paths, error) {
	payload, err := fs.Sub(embedded, "payload")
	if err != nil {
		return Paths{}, err
	}
	index, err := readIndex(payload)
	if err != nil {
		return Paths{}, err
	}
	return paths(dir, index), nil
}

// ExtractFrom is Extract for a payload other than the embedded one.
func ExtractFrom(payload fs.FS, dir string) (Paths, error) {
	index, err := readIndex(payload)
	if err != nil {
		return Paths{}, err
	}
	final := filepath.Join(dir, index.Hash[:nameDigits])
	if !index.Complete(final) {
		if err := extract(payload, index, final); err != nil {
			return Paths{}, fmt.Errorf("extract payload to %s: %w", final, err)
		}
	}
	if err := prune(dir, final); err != nil {
		return Paths{}, fmt.Errorf("remove old payloads from %s: %w", dir, err)
	}
	return paths(dir, index), nil
}

func readIndex(payload fs.FS) (archive.Index, error) {
	index, err := archive.ReadIndex(payload)
	if errors.Is(err, fs.ErrNotExist) {
		return archive.Index{}, ErrNoPayload
	}
	if err != nil {
		return archive.Index{}, fmt.Errorf("embedded payload: %w", err)
	}
	return index, nil
}

func paths(dir string, index archive.Index) Paths {
	final := filepath.Join(dir, index.Hash[:nameDigits])
	return Paths{
		Runc: filepath.Join(final, runcName), Shim: filepath.Join(final, shimName), CNIBin: filepath.Join(final, cniName),
		PauseImage: filepath.Join(final, pauseName),
	}
}

// extract replaces final in one step. A damaged copy is moved aside first: its
// executables may be running, and prune removes it once they are not.
func extract(payload fs.FS, index archive.Index, final string) error {
	dir := filepath.Dir(final)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(dir, tempPrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	if err := os.Chmod(temp, 0o755); err != nil {
		return err
	}
	if err := index.Unpack(payload, temp); err != nil {
		return err
	}
	if err := moveAside(final); err != nil {
		return err
	}
	if err := os.Rename(temp, final); err != nil {
		return err
	}
	return syncDir(dir)
}

func moveAside(path string) error {
	temp, err := os.MkdirTemp(filepath.Dir(path), tempPrefix)
	if err != nil {
		return err
	}
	err = os.Rename(path, filepath.Join(temp, "damaged"))
	if errors.Is(err, fs.ErrNotExist) {
		return os.Remove(temp)
	}
	return err
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
