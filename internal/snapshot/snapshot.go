// Package snapshot saves and restores what a cluster cannot do without: its datastore, the certificate authorities, the
// service-account key and the token for joining nodes.
//
// What it promises:
//   - A snapshot is consistent, and is there whole or not at all: it gets its name after it was written, read again and
//     found good. What a kill leaves is not taken for one, and is removed by the next.
//   - A restore changes nothing before all that it needs is unpacked, checked and on disk; from then on it comes to its end
//     whatever interrupts it, by its next run or the next start of the server. What it replaces is kept aside.
//   - After a restore, no revision is one that a client of the replaced datastore can have seen.
//
// A snapshot is a tar archive, compressed by zstd, of files as they are in the data directory, after one that describes it.
// So it can be put in place by hand as well. It holds secrets, and only its owner may read it.
package snapshot

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/clusterd/clusterd/internal/datastore/engine"
)

// Meta is what a snapshot says of itself.
type Meta struct {
	Format   int       `json:"format"`
	Created  time.Time `json:"created"`
	Version  string    `json:"version"` // of clusterd, when the datastore was its
	Node     string    `json:"node"`
	Revision int64     `json:"revision"`
	Keys     int64     `json:"keys"`
}

// format is the only layout of archives so far.
const format = 1

func (m Meta) content() engine.Content { return engine.Content{Revision: m.Revision, Keys: m.Keys} }

// Info is a snapshot where it is kept.
type Info struct {
	Name     string `json:"name"`
	Location string `json:"location"`
	Size     int64  `json:"size"` // of the archive in bytes
	Meta
	// Fault says why Meta is not there.
	Fault string `json:"fault,omitempty"`
}

// suffix is what archives' names end with. The names of snapshots do not have it.
const suffix = ".tar.zst"

var nameRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$`)

// CheckName returns the name of a snapshot without an archive's suffix, or says why it cannot be one.
func CheckName(name string) (string, error) {
	name = strings.TrimSuffix(name, suffix)
	if !nameRule.MatchString(name) {
		return "", fmt.Errorf("%q cannot be the name of a snapshot: use letters, digits, '.', '_' and '-', at most 200", name)
	}
	return name, nil
}

// stampLayout is the time in names that are made, in UTC. They sort by it.
const stampLayout = "20060102T150405Z"

// Stamped is the name of a snapshot of node with a time.
func Stamped(base, node string, at time.Time) string {
	return base + "-" + node + "-" + at.UTC().Format(stampLayout)
}

// ErrNotFound is for names that no snapshot has.
var ErrNotFound = errors.New("there is no snapshot of that name")
