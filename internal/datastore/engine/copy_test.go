package engine

import (
	"bytes"
	"database/sql"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k3s-io/kine/pkg/server"
)

// history is what one writer has done to a store, by revision.
type history []struct {
	revision   int64
	key, value string // without a value it was deleted
}

func (h history) at(revision int64) map[string]string {
	live := map[string]string{healthKey: healthValue}
	for _, w := range h {
		if w.revision > revision {
			break
		}
		if live[w.key] = w.value; w.value == "" {
			delete(live, w.key)
		}
	}
	return live
}

// contents is what a store holds, by key.
func contents(t *testing.T, e *Engine) map[string]string {
	t.Helper()
	_, kvs, err := e.List(t.Context(), "", "", 0, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	live := map[string]string{}
	for _, kv := range kvs {
		live[kv.Key] = string(kv.Value)
	}
	return live
}

// churn writes, deletes and compacts until stop is closed.
func churn(t *testing.T, e *Engine, stop <-chan struct{}, done chan<- history) {
	var h history
	defer func() { done <- h }()
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		key := fmt.Sprintf("/k/%d", i*7919%4000)
		w := history{{key: key, value: fmt.Sprintf("%d %s", i, strings.Repeat("x", 500))}}[0]
		if i%5 == 4 {
			w.revision, w.value = del2(t, e, key), ""
		} else {
			w.revision = put(t, e, key, w.value)
		}
		h = append(h, w)
		if i%50 == 0 {
			if _, err := e.Compact(t.Context(), w.revision); err != nil && err != server.ErrCompacted {
				t.Error(err)
			}
		}
	}
}

// del2 deletes a key that may not be there.
func del2(t *testing.T, e *Engine, key string) int64 {
	revision, _, _, err := e.Delete(t.Context(), key, 0)
	if err != nil {
		t.Error(err)
	}
	return revision
}

// A copy holds exactly what was there at its revision, whatever is written, deleted and compacted while it is made.
func TestCopyUnderLoad(t *testing.T) {
	dir := t.TempDir()
	e := open(t, filepath.Join(dir, "state.db"))
	stop, done := make(chan struct{}), make(chan history)
	go churn(t, e, stop, done)
	for { // until there is something to copy
		if current, _ := e.CurrentRevision(t.Context()); current > 2500 {
			break
		}
	}
	found := map[string]Content{}
	for i := range 5 {
		path := filepath.Join(dir, fmt.Sprint("copy", i))
		c, err := e.Copy(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		found[path] = c
	}
	close(stop)
	h := <-done
	for path, c := range found {
		if got, err := Inspect(t.Context(), path); err != nil || got != c {
			t.Errorf("%s holds %+v (%v), want %+v", path, got, err, c)
		}
		copied := open(t, path)
		if got, want := contents(t, copied), h.at(c.Revision); !maps.Equal(got, want) || int64(len(want)) != c.Keys {
			t.Errorf("the copy at %d has %d keys, want %d as they were: %+v", c.Revision, len(got), len(want), c)
		}
		if got := put(t, copied, "/next", "x"); got != c.Revision+1 {
			t.Errorf("the first revision after %d is %d", c.Revision, got)
		}
	}
	if n := e.copying.Load(); n != 0 {
		t.Errorf("compaction still waits for %d", n)
	}
}

// What a copy needs is not compacted before it is through, and everything is after.
func TestCompactionWaitsForCopies(t *testing.T) {
	e := open(t, tempPath(t))
	put(t, e, "/a", "old")
	e.copying.Store(put(t, e, "/a", "copied"))
	last := put(t, e, "/a", "new")
	if _, err := e.Compact(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	put(t, e, "/b", "x") // comes after the slice of compaction
	var left int
	count := func() int {
		t.Helper()
		rows, err := e.file.after(1, 100)
		if err != nil {
			t.Fatal(err)
		}
		left = 0
		for _, r := range rows {
			if r.key == "/a" {
				left++
			}
		}
		return left
	}
	if count() != 2 {
		t.Errorf("%d revisions of the key are left, want the copied and the new one", left)
	}
	e.copying.Store(0)
	put(t, e, "/b", "y")
	put(t, e, "/b", "z")
	if count() != 1 {
		t.Errorf("%d revisions of the key are left, want the new one", left)
	}
}

func TestCopyRefusesWhatIsThere(t *testing.T) {
	e := open(t, tempPath(t))
	path := filepath.Join(t.TempDir(), "there")
	save(t, path, []byte("something"))
	if _, err := e.Copy(t.Context(), path); err == nil || string(load(t, path)) != "something" {
		t.Errorf("got %v and %q", err, load(t, path))
	}
}

// A store that was killed has its last writes in the log alone; copies of the file have them, and leave it as it is.
func TestCopyClosed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state.db")
	e := open(t, tempPath(t))
	put(t, e, "/a", "x")
	save(t, path, load(t, e.file.path))
	save(t, path+"-wal", load(t, e.file.path+"-wal"))
	if r, err := Revision(t.Context(), path); err == nil || len(load(t, path+"-wal")) == 0 {
		t.Errorf("a file with everything in its log is at %d", r)
	}
	to := filepath.Join(dir, "copy")
	c, err := CopyClosed(t.Context(), path, to)
	if err != nil || c != (Content{Revision: 2, Keys: 2}) {
		t.Fatalf("copied %+v, %v", c, err)
	}
	for _, p := range []string{to, path} {
		if got := value(t, open(t, p), "/a", 0); got != "x" {
			t.Errorf("%s has %q", p, got)
		}
	}
	if found, _ := filepath.Glob(filepath.Join(dir, "*-shm")); found != nil {
		t.Errorf("left %v", found)
	}
	if _, err := CopyClosed(t.Context(), filepath.Join(dir, "none"), filepath.Join(dir, "copy2")); err == nil {
		t.Error("copied a file that is not there")
	}
	if _, err := os.Stat(filepath.Join(dir, "none")); err == nil {
		t.Error("made the file that it was to copy")
	}
}

// Rewriting moves all revisions up by the same amount and leaves out what is not live.
func TestRewrite(t *testing.T) {
	path := tempPath(t)
	e := open(t, path)
	put(t, e, "/a", "1")
	put(t, e, "/a", "2")
	put(t, e, "/b", "1")
	if _, err := e.Create(t.Context(), "/leased", []byte("1"), 3600); err != nil {
		t.Fatal(err)
	}
	last := del(t, e, "/b")
	e.Close()
	to := filepath.Join(t.TempDir(), "to")
	const shift = 1_000_000
	c, err := Rewrite(t.Context(), path, to, shift)
	if want := (Content{Revision: last + shift, Keys: 3}); err != nil || c != want {
		t.Fatalf("rewrote %+v (%v), want %+v", c, err, want)
	}
	e = open(t, to)
	current, kvs, err := e.List(t.Context(), "", "", 0, 0, false)
	if err != nil || current != last+shift || len(kvs) != 3 {
		t.Fatalf("at %d: %v, %v", current, kvs, err)
	}
	if a := kvs[0]; a.Key != "/a" || string(a.Value) != "2" || a.ModRevision != shift+3 || a.CreateRevision != shift+2 || a.Version != 2 {
		t.Errorf("got %+v", a)
	}
	if l := kvs[1]; l.Key != "/leased" || l.Lease != 3600 {
		t.Errorf("got %+v", l)
	}
	if _, _, err := e.Get(t.Context(), "/a", current-1, false); err != server.ErrCompacted {
		t.Errorf("a read before the copy: %v", err)
	}
	if got, err := Revision(t.Context(), path); err != nil || got != last {
		t.Errorf("the source is at %d (%v), want %d", got, err, last)
	}
}

func TestInspectFindsDamage(t *testing.T) {
	path := tempPath(t)
	fill(t, path, 300)
	whole := load(t, path)
	for name, damaged := range map[string][]byte{
		"empty":    nil,
		"no table": nil,
		"torn":     whole[:len(whole)/2],
		"zeroes":   append(append(bytes.Clone(whole[:8*4096]), make([]byte, 4096)...), whole[9*4096:]...),
		"text":     bytes.Repeat([]byte("text"), 5000),
	} {
		path := tempPath(t)
		save(t, path, damaged)
		if name == "no table" {
			db, err := sql.Open("sqlite", location(path))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := db.Exec("CREATE TABLE other (a)"); err != nil {
				t.Fatal(err)
			}
			db.Close()
		}
		if c, err := Inspect(t.Context(), path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

// The layout of earlier versions is copied as it is and becomes the current one when it is rewritten.
func TestCopyOfKine(t *testing.T) {
	path := tempPath(t)
	makeKine(t, path)
	to := filepath.Join(t.TempDir(), "copy")
	want := Content{Revision: 8, Keys: 3}
	if c, err := CopyClosed(t.Context(), path, to); err != nil || c != want {
		t.Fatalf("copied %+v (%v), want %+v", c, err, want)
	}
	if c, err := Inspect(t.Context(), to); err != nil || c != want {
		t.Errorf("the copy has %+v (%v), want %+v", c, err, want)
	}
	c, err := Rewrite(t.Context(), to, filepath.Join(t.TempDir(), "new"), 10)
	if err != nil || c != (Content{Revision: 18, Keys: 3}) {
		t.Errorf("rewrote %+v, %v", c, err)
	}
}
