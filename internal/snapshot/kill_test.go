package snapshot_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clusterd/clusterd/internal/snapshot"
)

// saverRoot, when set, makes this test binary the process that gets killed.
const saverRoot = "CLUSTERD_TEST_SNAPSHOT_ROOT"

// TestSaver is the child of TestKillLeavesNoHalf: it saves snapshots until it is killed.
func TestSaver(t *testing.T) {
	root := os.Getenv(saverRoot)
	if root == "" {
		t.Skip("only runs as a child process")
	}
	i := blank(t, root)
	e := i.open(t)
	i.Copy = e.Copy
	for n := 0; ; n++ {
		i.save(t, fmt.Sprintf("%d-%d", os.Getpid(), n))
		fmt.Fprintln(os.Stderr, "saved")
	}
}

func TestKillLeavesNoHalf(t *testing.T) {
	i := install(t)
	for n := range 50 {
		i.put(t, fmt.Sprint("/", n), strings.Repeat(fmt.Sprint(rand.Uint64()), 2000))
	}
	for range 8 {
		killSaver(t, i.dir.Root())
	}
	names, err := i.folder().Names(t.Context())
	if err != nil || len(names) < 8 {
		t.Fatalf("only %q were saved, %v", names, err)
	}
	want := i.state(t)
	for _, name := range []string{names[0], names[len(names)/2], names[len(names)-1]} {
		other := blank(t, t.TempDir())
		other.restore(t, i.folder().Path(name))
		if got := other.state(t); len(got) != len(want) {
			t.Errorf("%s has %d of %d parts", name, len(got), len(want))
		}
	}
	for _, name := range names {
		if d := i.folder().Describe(t.Context(), name); d.Fault != "" || d.Keys != 52 {
			t.Errorf("%+v", d)
		}
	}
	i.folder().Clean()
	left, err := filepath.Glob(filepath.Join(string(i.folder()), ".s*"))
	if err != nil || left != nil {
		t.Errorf("left %q, %v", left, err)
	}
	t.Logf("%d snapshots were saved", len(names))
}

// killSaver lets a child save at least one snapshot and kills it at a random moment in the next ones.
func killSaver(t *testing.T, root string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSaver$")
	cmd.Env = append(os.Environ(), saverRoot+"="+root)
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var kill *time.Timer
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		if kill == nil && lines.Text() == "saved" {
			kill = time.AfterFunc(rand.N(60*time.Millisecond), func() { _ = cmd.Process.Kill() })
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the saver ended by itself")
	}
}

var _ snapshot.Place = snapshot.Folder("")
