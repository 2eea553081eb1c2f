package ipam

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/clusterd/clusterd/internal/atomicfile"
)

// cursorFile holds the youngest given address of each prefix. The names of
// records have an "@", so it is not one of them.
const cursorFile = "last"

// store is the directory of records, one file an allocation, named after its key.
type store struct{ dir string }

func (s store) path(k Key) string { return filepath.Join(s.dir, k.ContainerID+"@"+k.IfName) }

func (s store) save(a Allocation) error {
	data, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("record the addresses of sandbox %s: %w", a.ContainerID, err)
	}
	if err := atomicfile.Write(s.path(a.Key), 0o600, data); err != nil {
		return fmt.Errorf("record the addresses of sandbox %s: %w", a.ContainerID, err)
	}
	return nil
}

func (s store) remove(k Key) error {
	if err := os.Remove(s.path(k)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the addresses of sandbox %s: %w", k.ContainerID, err)
	}
	return nil
}

// load makes the directory when it is missing and reads all records. Temporary
// files of writes that a kill cut short are removed.
func (s store) load() (records []Allocation, damaged []Key, err error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make the directory of address records: %w", err)
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read address records: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			err = errors.Join(err, os.Remove(filepath.Join(s.dir, e.Name())))
			continue
		}
		id, ifName, is := strings.Cut(e.Name(), "@")
		if !is {
			continue
		}
		if a, ok := s.read(Key{id, ifName}); ok {
			records = append(records, a)
		} else {
			damaged = append(damaged, Key{id, ifName})
		}
	}
	return records, damaged, err
}

// read returns the record of k when it is whole and really k's.
func (s store) read(k Key) (a Allocation, ok bool) {
	data, err := os.ReadFile(s.path(k))
	if err != nil || json.Unmarshal(data, &a) != nil || a.Key != k || len(a.Addresses) == 0 {
		return Allocation{}, false
	}
	for _, p := range a.Addresses {
		if !p.IsValid() {
			return Allocation{}, false
		}
	}
	return a, true
}

func (s store) saveCursor(given []netip.Prefix) error {
	var text []string
	for _, p := range given {
		text = append(text, p.Addr().String())
	}
	return atomicfile.Write(filepath.Join(s.dir, cursorFile), 0o600, []byte(strings.Join(text, "\n")))
}

// cursor returns what saveCursor wrote, as far as it can be read: without it the
// search begins at the first address, which costs nothing but the turn.
func (s store) cursor() []netip.Addr {
	data, err := os.ReadFile(filepath.Join(s.dir, cursorFile))
	if err != nil {
		return nil
	}
	var out []netip.Addr
	for _, text := range strings.Fields(string(data)) {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a)
		}
	}
	return out
}
