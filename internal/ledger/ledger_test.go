package ledger

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestEntriesOutliveTheProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l := must(open(path, "one"))
	if err := l.Add(Entry{File, "/a b"}, Entry{Link, "clusterd0"}, Entry{File, "/a b"}); err != nil {
		t.Fatal(err)
	}
	again := must(open(path, "one"))
	if !slices.Equal(again.Names(File), []string{"/a b"}) || !again.Has(Link, "clusterd0") {
		t.Errorf("read %v", again.entries)
	}
	after := must(open(path, "two"))
	if !after.Has(File, "/a b") || after.Has(Link, "clusterd0") {
		t.Errorf("after a reboot: %v", after.entries)
	}
	if err := after.Add(Entry{Cgroup, "/c"}); err != nil {
		t.Fatal(err)
	}
	if l := must(open(path, "one")); l.Has(Link, "clusterd0") || l.Has(Cgroup, "/c") {
		t.Errorf("things of two boots: %v", l.entries)
	}
}

func TestDamage(t *testing.T) {
	for _, row := range []struct{ name, text, want string }{
		{"another file", "hello\n", "not one that clusterd wrote"},
		{"no name", header + "file\n", `no name in the line "file"`},
		{"a later kind", header + "moon full\n", "or a later one"},
	} {
		t.Run(row.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ledger")
			if err := os.WriteFile(path, []byte(row.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := open(path, "one"); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want %q", err, row.want)
			}
		})
	}
	l := must(open(filepath.Join(t.TempDir(), "ledger"), "one"))
	if err := l.Add(Entry{File, "/a\nfile /etc/passwd"}); err == nil {
		t.Error("a name with a line feed was taken")
	}
}

// TestEmptied has a file that a failing disk has emptied: it is begun anew.
func TestEmptied(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := open(path, "one")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Add(Entry{File, "/f"}); err != nil {
		t.Fatal(err)
	}
	if l, err = open(path, "one"); err != nil || !l.Has(File, "/f") {
		t.Errorf("%v, %v", l, err)
	}
}

func TestPaths(t *testing.T) {
	root := t.TempDir()
	l := must(open(filepath.Join(root, "ledger"), "one"))
	at := func(name string) string { return filepath.Join(root, name) }
	if err := os.WriteFile(at("foreign"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(at("logs/old"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		l.AddFile(at("foreign")), l.AddFile(at("etc/x/file")), l.AddTree(at("var/run")), l.AddTree(at("logs")), l.AddDir(at("etc/y")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := []Entry{
		{Dir, at("etc")}, {Dir, at("etc/x")}, {File, at("etc/x/file")}, {Dir, at("var")}, {Tree, at("var/run")},
		{Contents, at("logs")}, {Keep, at("logs/old")}, {Dir, at("etc/y")},
	}
	if !slices.Equal(l.entries, want) {
		t.Errorf("got %v, want %v", l.entries, want)
	}
	// What was made meanwhile is not taken for somebody else's.
	if err := os.MkdirAll(at("logs/new"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := l.AddTree(at("logs")); err != nil || l.Has(Keep, at("logs/new")) {
		t.Errorf("the second time: %v, %v", err, l.entries)
	}
}
