// Package ledger keeps the list of what clusterd makes on a machine outside of its data directory, so that it can be
// removed again, and nothing else with it.
//
// It promises:
//   - An entry is on disk before Add returns, and callers add it before they make the thing. So after a kill at any
//     moment the ledger names everything that was made, and perhaps something that was not.
//   - What is gone after a reboot (see Kind) is not named after one: somebody else may have made it since.
//   - The file is text, a line "KIND NAME" for each entry, for people to read.
package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/clusterd/clusterd/internal/atomicfile"
)

// Kind is what sort of thing an entry names.
type Kind string

// The kinds that outlive a reboot. Names are absolute paths but for Service.
const (
	// File is a file or a link.
	File Kind = "file"
	// Program is a file that is removed last, since it does the removal.
	Program Kind = "program"
	// Dir is a directory that others may use too: it is removed if it is empty.
	Dir Kind = "dir"
	// Tree is a directory with all that is in it.
	Tree Kind = "tree"
	// Contents is what is in a directory that was there before, except what Keep names.
	Contents Kind = "contents"
	Keep     Kind = "keep"
	// Service is what runs clusterd: "systemd UNIT" or "openrc NAME".
	Service Kind = "service"
)

// The kinds that a reboot removes.
const (
	// Link is a network interface.
	Link Kind = "link"
	// Table is nftables', with all that is in it: "FAMILY TABLE".
	Table Kind = "table"
	// BaseTable and Chain are those in which iptables keeps its rules, "FAMILY TABLE" and "FAMILY TABLE CHAIN": they are
	// removed if they are empty.
	BaseTable Kind = "base-table"
	Chain     Kind = "chain"
	// Rules is a program whose rules begin with KUBE-: "iptables" or "ip6tables".
	Rules Kind = "rules"
	// Cgroup is the path of a control group.
	Cgroup Kind = "cgroup"
	// Mount is a directory that was mounted over itself.
	Mount Kind = "mount"
)

var (
	lasting = []Kind{File, Program, Dir, Tree, Contents, Keep, Service}
	booted  = []Kind{Link, Table, BaseTable, Chain, Rules, Cgroup, Mount}
)

// boot is the kind of the line before the entries that a reboot removes.
const boot Kind = "boot"

const header = "# What clusterd made outside of this directory. clusterd uninstall removes it.\n"

// bootFile identifies the time since the last start of the kernel.
const bootFile = "/proc/sys/kernel/random/boot_id"

// Entry is one thing.
type Entry struct {
	Kind Kind
	Name string
}

// Ledger is the list in one file. It is for one goroutine, of the process that has the data directory's lock.
type Ledger struct {
	path, boot string
	entries    []Entry
}

// Exists says whether there is a ledger at path.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Open reads the ledger at path; without a file, or with one that a failing disk has emptied, it is empty. Nothing is written
// before the first Add.
func Open(path string) (*Ledger, error) {
	id, err := os.ReadFile(bootFile)
	if err != nil {
		return nil, fmt.Errorf("find out which boot this is: %w", err)
	}
	return open(path, string(bytes.TrimSpace(id)))
}

func open(path, id string) (*Ledger, error) {
	l := &Ledger{path: path, boot: id}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	if len(data) == 0 {
		return l, nil // a node that starts, and leaves a little when it is removed, is worth more than none
	}
	if !strings.HasPrefix(string(data), header) {
		return nil, fmt.Errorf("read the ledger %s: it is not one that clusterd wrote", path)
	}
	current := false
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		kind, name, ok := strings.Cut(line, " ")
		switch k := Kind(kind); {
		case line == "" || line[0] == '#':
		case !ok || name == "":
			return nil, fmt.Errorf("read the ledger %s: there is no name in the line %q", path, line)
		case k == boot:
			current = name == id
		case slices.Contains(lasting, k) || current && slices.Contains(booted, k):
			l.entries = append(l.entries, Entry{k, name})
		case !slices.Contains(booted, k):
			return nil, fmt.Errorf("read the ledger %s: this clusterd does not know %q: use the one that wrote it, or a later one", path, line)
		}
	}
	return l, nil
}

// Has says whether there is such an entry.
func (l *Ledger) Has(kind Kind, name string) bool {
	return slices.Contains(l.entries, Entry{kind, name})
}

// Names are those of all entries of a kind, in the order in which they were added.
func (l *Ledger) Names(kind Kind) []string {
	var names []string
	for _, e := range l.entries {
		if e.Kind == kind {
			names = append(names, e.Name)
		}
	}
	return names
}

// Add enters what is not entered yet.
func (l *Ledger) Add(entries ...Entry) error {
	all := slices.Clone(l.entries)
	for _, e := range entries {
		if strings.ContainsAny(e.Name, "\n\x00") || e.Name == "" {
			return fmt.Errorf("enter %s %q into the ledger: the name is empty or has a line feed", e.Kind, e.Name)
		}
		if !slices.Contains(all, e) {
			all = append(all, e)
		}
	}
	if len(all) == len(l.entries) && Exists(l.path) {
		return nil
	}
	if err := atomicfile.WriteDurable(l.path, 0o600, l.encode(all)); err != nil {
		return fmt.Errorf("write the ledger: %w", err)
	}
	l.entries = all
	return nil
}

func (l *Ledger) encode(entries []Entry) []byte {
	var b bytes.Buffer
	b.WriteString(header)
	for _, e := range entries {
		if slices.Contains(lasting, e.Kind) {
			fmt.Fprintln(&b, e.Kind, e.Name)
		}
	}
	fmt.Fprintln(&b, boot, l.boot)
	for _, e := range entries {
		if slices.Contains(booted, e.Kind) {
			fmt.Fprintln(&b, e.Kind, e.Name)
		}
	}
	return b.Bytes()
}
