package snapshot_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/datastore/engine"
	"github.com/clusterd/clusterd/internal/pki"
	"github.com/clusterd/clusterd/internal/snapshot"
)

// installation is a data directory whose datastore is closed between steps.
type installation struct {
	dir datadir.Dir
	snapshot.Maker
}

// install makes one with authorities, a token and a first key.
func install(t *testing.T) installation {
	t.Helper()
	i := blank(t, t.TempDir())
	for _, d := range []string{i.dir.DB(), i.dir.ServerTLS() + "/x"} {
		if err := os.MkdirAll(filepath.Dir(d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := pki.Open(i.dir.ServerTLS(), pki.Options{}); err != nil {
		t.Fatal(err)
	}
	write(t, i.dir.ServerToken(), "first\n")
	i.put(t, "/a", "first")
	return i
}

// blank is a machine where nothing has been yet.
func blank(t *testing.T, root string) installation {
	t.Helper()
	dir, err := datadir.New(root)
	if err != nil {
		t.Fatal(err)
	}
	copyClosed := func(ctx context.Context, path string) (engine.Content, error) {
		return engine.CopyClosed(ctx, dir.DB(), path)
	}
	return installation{dir, snapshot.Maker{Dir: dir, Version: "v1", Node: "node", Copy: copyClosed}}
}

func (i installation) open(t *testing.T) *engine.Engine {
	t.Helper()
	e, err := engine.Open(t.Context(), engine.Config{Path: i.dir.DB(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// put writes a key and returns its revision.
func (i installation) put(t *testing.T, key, value string) int64 {
	t.Helper()
	e := i.open(t)
	defer e.Close()
	if _, _, _, err := e.Delete(t.Context(), key, 0); err != nil {
		t.Fatal(err)
	}
	revision, err := e.Create(t.Context(), key, []byte(value), 0)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

// state is all that a snapshot is to bring back.
func (i installation) state(t *testing.T) map[string]string {
	t.Helper()
	e := i.open(t)
	defer e.Close()
	_, kvs, err := e.List(t.Context(), "", "", 0, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, kv := range kvs {
		all[kv.Key] = string(kv.Value)
	}
	for _, path := range append(pki.Dir(i.dir.ServerTLS()).Lasting(), i.dir.ServerToken()) {
		all[filepath.Base(path)] = read(t, path)
	}
	return all
}

func (i installation) folder() snapshot.Folder { return snapshot.Folder(i.dir.Snapshots()) }

func (i installation) save(t *testing.T, name string) snapshot.Info {
	t.Helper()
	made, err := i.Save(t.Context(), i.folder(), name)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// files lists what is below root, with each file's content.
func files(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			all[path] = "directory"
			return err
		}
		b, err := os.ReadFile(path)
		all[path] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// oneLine wants an error of one line with all words.
func oneLine(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Error("no error")
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q lacks %q", err, w)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than a line: %q", err)
	}
}

func TestSaveAndList(t *testing.T) {
	i := install(t)
	before := files(t, filepath.Dir(i.dir.ServerTLS()))
	i.Now = func() time.Time { return time.Date(2026, 12, 24, 18, 30, 0, 5, time.FixedZone("", 3600)) }
	made := i.save(t, "one")
	want := snapshot.Info{Name: "one", Location: i.folder().Path("one"), Size: made.Size, Meta: snapshot.Meta{
		Format: 1, Created: time.Date(2026, 12, 24, 17, 30, 0, 0, time.UTC), Version: "v1", Node: "node", Revision: 2, Keys: 2,
	}}
	if made != want || made.Size == 0 {
		t.Errorf("made\n%+v\nwant\n%+v", made, want)
	}
	info, err := os.Stat(made.Location)
	if err != nil || info.Mode().Perm() != 0o600 || info.Size() != made.Size {
		t.Errorf("the archive has mode %o, size %d, %v", info.Mode().Perm(), info.Size(), err)
	}
	if _, err := i.Save(t.Context(), i.folder(), "one.tar.zst"); err == nil || !strings.Contains(err.Error(), "there already") {
		t.Errorf("saved over a snapshot: %v", err)
	}
	i.save(t, "two")
	write(t, i.folder().Path("broken"), "not an archive")
	write(t, filepath.Join(string(i.folder()), "other.txt"), "")
	names, err := i.folder().Names(t.Context())
	if err != nil || !slices.Equal(names, []string{"broken", "one", "two"}) {
		t.Errorf("there are %q, %v", names, err)
	}
	if d := i.folder().Describe(t.Context(), "broken"); d.Fault == "" || d.Size != 14 {
		t.Errorf("a broken one is described as %+v", d)
	}
	for _, name := range []string{"one", "two", "broken"} {
		if err := i.folder().Delete(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	if err := i.folder().Delete(t.Context(), "one"); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("deleted twice: %v", err)
	}
	if err := os.RemoveAll(string(i.folder())); err != nil {
		t.Fatal(err)
	}
	if after := files(t, filepath.Dir(i.dir.ServerTLS())); !maps.Equal(before, after) {
		t.Errorf("saving has changed something else: %q and %q", slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after)))
	}
}

func TestNames(t *testing.T) {
	for _, name := range []string{"", ".hidden", "../up", "a/b", "a b", strings.Repeat("a", 201), ".tar.zst", "ä"} {
		if got, err := snapshot.CheckName(name); err == nil {
			t.Errorf("%q is taken for %q", name, got)
		}
	}
	for name, want := range map[string]string{"a": "a", "A-1.b_c": "A-1.b_c", "a.tar.zst": "a"} {
		if got, err := snapshot.CheckName(name); err != nil || got != want {
			t.Errorf("%q gives %q, %v", name, got, err)
		}
	}
}

// A disk without room costs a snapshot, in one line, and nothing else.
func TestFullDisk(t *testing.T) {
	i := install(t)
	small := t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("mount a small file system: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(small, unix.MNT_DETACH) })
	to := snapshot.Folder(filepath.Join(small, "snapshots"))
	e := i.open(t)
	defer e.Close()
	ballast := filepath.Join(small, "ballast")
	i.Copy = func(ctx context.Context, path string) (engine.Content, error) { // somebody else takes the room meanwhile
		_ = os.WriteFile(ballast, make([]byte, 300_000), 0o600)
		return e.Copy(ctx, path)
	}
	_, err := i.Save(t.Context(), to, "one")
	oneLine(t, err, "one", "full")
	left := slices.Sorted(maps.Keys(files(t, string(to))))
	if !slices.Equal(left, []string{string(to), filepath.Join(string(to), ".lock")}) {
		t.Errorf("left %q", left)
	}
	i.Copy = e.Copy
	_, err = i.Save(t.Context(), to, "one")
	oneLine(t, err, "free", "make room", "--snapshot-dir")
}

func TestPrune(t *testing.T) {
	i := install(t)
	at := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	kept := []string{"scheduled-node-by-hand", "scheduled-other-20261201T000000Z", "mine"}
	for _, name := range kept {
		i.save(t, name)
	}
	for n := range 5 {
		i.save(t, snapshot.Stamped("scheduled", "node", at.Add(time.Duration(n)*12*time.Hour)))
	}
	gone, err := snapshot.Prune(t.Context(), i.folder(), "scheduled", "node", 2)
	if err != nil || !slices.Equal(gone, []string{"scheduled-node-20261201T000000Z", "scheduled-node-20261201T120000Z", "scheduled-node-20261202T000000Z"}) {
		t.Errorf("removed %q, %v", gone, err)
	}
	want := append(kept, "scheduled-node-20261202T120000Z", "scheduled-node-20261203T000000Z")
	slices.Sort(want)
	if names, err := i.folder().Names(t.Context()); err != nil || !slices.Equal(names, want) {
		t.Errorf("left %q, %v", names, err)
	}
}

func TestSchedule(t *testing.T) {
	for _, text := range []string{"", "disabled"} {
		if s, err := snapshot.ParseSchedule(text); s != nil || err != nil {
			t.Errorf("%q is %v, %v", text, s, err)
		}
	}
	for _, text := range []string{"often", "* * *", "99 * * * *", "0 0 30 2 *"} {
		if _, err := snapshot.ParseSchedule(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	s, err := snapshot.ParseSchedule("0 */12 * * *")
	if err != nil {
		t.Fatal(err)
	}
	if next := s.Next(time.Date(2026, 12, 1, 3, 0, 0, 0, time.Local)); !next.Equal(time.Date(2026, 12, 1, 12, 0, 0, 0, time.Local)) {
		t.Errorf("the next one is at %s", next)
	}
}

// soon is a schedule whose moments the test chooses; asked is told when it was asked.
type soon struct {
	next  chan time.Time
	asked chan struct{}
}

func (s soon) Next(time.Time) time.Time {
	s.asked <- struct{}{}
	return <-s.next
}

func TestFollow(t *testing.T) {
	s := soon{make(chan time.Time), make(chan struct{})}
	clock := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		snapshot.Follow(ctx, s, clock, func(context.Context) { done <- struct{}{} })
	}()
	<-s.asked
	s.next <- time.Now().Add(time.Millisecond)
	<-done
	<-s.asked
	s.next <- time.Now().Add(time.Hour)
	clock <- struct{}{} // it is asked again, and nothing is done
	<-s.asked
	s.next <- time.Now()
	<-done
	<-s.asked
	close(clock)
	s.next <- time.Now().Add(time.Hour)
	<-s.asked // once more because of the clock that is gone, and never again for that
	s.next <- time.Now().Add(time.Hour)
	cancel()
	<-ended
}
