package snapshot_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/clusterd/clusterd/internal/pki"
	"github.com/clusterd/clusterd/internal/snapshot"
)

var restoredAt = time.Date(2026, 12, 2, 10, 0, 0, 0, time.UTC)

const restoredStamp = "20261202T100000Z"

func (i installation) restore(t *testing.T, archive string) snapshot.Restored {
	t.Helper()
	r, err := snapshot.Restore(t.Context(), i.dir, archive, "v2", restoredAt)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// revisions are the lowest and the highest of live keys, and the store's.
func (i installation) revisions(t *testing.T) (lowest, highest int64) {
	t.Helper()
	e := i.open(t)
	defer e.Close()
	current, kvs, err := e.List(t.Context(), "", "", 0, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	lowest = current
	for _, kv := range kvs {
		lowest = min(lowest, kv.ModRevision, kv.CreateRevision)
	}
	return lowest, current
}

func TestRestoreInPlace(t *testing.T) {
	i := install(t)
	want := i.state(t)
	made := i.save(t, "one")
	i.put(t, "/a", "second")
	last := i.put(t, "/b", "second")
	before := read(t, i.dir.DB())
	r := i.restore(t, made.Location)
	if r.Unread != nil || r.Meta != made.Meta {
		t.Errorf("restored %+v, want %+v", r, made)
	}
	if got := i.state(t); !maps.Equal(got, want) {
		t.Errorf("there is\n%q\nwant\n%q", got, want)
	}
	if lowest, highest := i.revisions(t); lowest <= last || highest != r.Last {
		t.Errorf("revisions are %d to %d; they were at %d, and %d is reported", lowest, highest, last, r.Last)
	}
	aside := i.dir.DB() + ".old-" + restoredStamp
	if !slices.Equal(r.Aside, []string{aside}) || read(t, aside) != before {
		t.Errorf("kept aside: %q", r.Aside)
	}
	if v := read(t, i.dir.DBVersion()); v != "v2\n" {
		t.Errorf("the datastore is of %q", v)
	}
	left, _ := filepath.Glob(filepath.Dir(i.dir.DB()) + "/../restore*")
	if left != nil {
		t.Errorf("left %q", left)
	}
	for range 2 { // again and again it goes up
		_, highest := i.revisions(t)
		if err := os.Remove(aside); err != nil {
			t.Fatal(err)
		}
		i.restore(t, made.Location)
		if lowest, _ := i.revisions(t); lowest <= highest {
			t.Errorf("revision %d after %d", lowest, highest)
		}
	}
}

// A fresh machine becomes the old one.
func TestRestoreOnAnotherMachine(t *testing.T) {
	i := install(t)
	want := i.state(t)
	made := i.save(t, "one")
	other := blank(t, filepath.Join(t.TempDir(), "new"))
	r := other.restore(t, made.Location)
	if got := other.state(t); !maps.Equal(got, want) || len(r.Aside) != 0 {
		t.Errorf("there is\n%q\nwant\n%q\naside %q", got, want, r.Aside)
	}
	for _, path := range append(pki.Dir(other.dir.ServerTLS()).Lasting(), other.dir.DB(), other.dir.ServerToken()) {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v", path, info.Mode(), err)
		}
	}
}

// Another cluster's identity is kept aside with its datastore.
func TestRestoreOverAnotherCluster(t *testing.T) {
	i, other := install(t), install(t)
	write(t, other.dir.ServerToken(), "second\n")
	replaced := other.state(t)
	r := other.restore(t, i.save(t, "one").Location)
	if got, want := other.state(t), i.state(t); !maps.Equal(got, want) {
		t.Errorf("there is\n%q\nwant\n%q", got, want)
	}
	if len(r.Aside) != 2+len(pki.Dir("").Lasting()) {
		t.Errorf("kept aside: %q", r.Aside)
	}
	for _, path := range r.Aside {
		name := strings.TrimSuffix(filepath.Base(path), ".old-"+restoredStamp)
		if want, ok := replaced[name]; ok && read(t, path) != want {
			t.Errorf("%s is not what was replaced", path)
		}
	}
}

// A datastore that cannot be read any more, with a log that belongs to it, is no obstacle and has no influence.
func TestRestoreOverDamage(t *testing.T) {
	i := install(t)
	want := i.state(t)
	made := i.save(t, "one")
	write(t, i.dir.DB(), strings.Repeat("damage", 1000))
	write(t, i.dir.DB()+"-wal", "stale")
	r := i.restore(t, made.Location)
	if r.Unread == nil {
		t.Error("nothing is said of the damage")
	}
	if got := i.state(t); !maps.Equal(got, want) {
		t.Errorf("there is\n%q\nwant\n%q", got, want)
	}
	aside := i.dir.DB() + ".old-" + restoredStamp
	if !slices.Equal(r.Aside, []string{aside, aside + "-wal"}) || read(t, aside+"-wal") != "stale" {
		t.Errorf("kept aside: %q", r.Aside)
	}
}

// What is wrong with a snapshot is found before anything is changed, wherever it is.
func TestRestoreRefusesDamage(t *testing.T) {
	i := install(t)
	for n := range 50 {
		i.put(t, fmt.Sprint("/", n), strings.Repeat(fmt.Sprint(n), 100))
	}
	whole := []byte(read(t, i.save(t, "one").Location))
	damaged := map[string][]byte{"empty": nil, "text": []byte("this is no snapshot"), "cut at the start": whole[:20]}
	for n := range 16 {
		flipped := bytes.Clone(whole)
		flipped[len(whole)*n/16+3] ^= 0x10
		damaged[fmt.Sprint("flipped ", n)] = flipped
		damaged[fmt.Sprint("cut ", n)] = whole[:len(whole)*n/16]
	}
	damaged["cut at the end"] = whole[:len(whole)-1]
	archive := filepath.Join(t.TempDir(), "damaged.tar.zst")
	before := files(t, i.dir.Root())
	for name, data := range damaged {
		write(t, archive, string(data))
		_, err := snapshot.Restore(t.Context(), i.dir, archive, "v2", restoredAt)
		if err == nil {
			t.Errorf("%s: it was restored", name)
			continue
		}
		oneLine(t, err, archive, "cannot be restored")
		if after := files(t, i.dir.Root()); !maps.Equal(before, after) {
			t.Fatalf("%s: something was changed: %q", name, slices.Sorted(maps.Keys(after)))
		}
	}
}

// From the moment on at which all is prepared, a restore that ended anywhere is finished by whoever comes next.
func TestRestoreGoesOn(t *testing.T) {
	i, other := install(t), install(t)
	want := i.state(t)
	archive := i.save(t, "one").Location
	write(t, other.dir.ServerToken(), "second\n")
	steps := 0
	for ; ; steps++ {
		root := filepath.Join(t.TempDir(), "copy")
		if err := os.CopyFS(root, os.DirFS(other.dir.Root())); err != nil {
			t.Fatal(err)
		}
		victim := blank(t, root)
		undo := snapshot.FailRenames(steps)
		_, err := snapshot.Restore(t.Context(), victim.dir, archive, "v2", restoredAt)
		stopped := err != nil
		undo()
		if _, err := snapshot.Finish(victim.dir); err != nil {
			t.Fatal(err)
		}
		if got := victim.state(t); stopped && steps > 0 && !maps.Equal(got, want) {
			t.Errorf("stopped after %d steps, there is\n%q\nwant\n%q", steps, got, want)
		}
		if left, _ := filepath.Glob(filepath.Join(root, "server", "restore*")); left != nil {
			t.Errorf("stopped after %d steps, left %q", steps, left)
		}
		if !stopped {
			break
		}
	}
	if steps < 10 {
		t.Errorf("a restore has only %d steps", steps)
	}
}

// Archives of later versions, and those that hold something else than a data directory does, are refused.
func TestRestoreRefusesWhatIsUnknown(t *testing.T) {
	i := install(t)
	db := read(t, i.dir.DB())
	meta := func(format int) string {
		return fmt.Sprintf(`{"format":%d,"version":"v9","revision":2,"keys":2}`, format)
	}
	for _, row := range []struct {
		names, contents []string
		want            string
	}{
		{[]string{"snapshot.json", "server/db/state.db"}, []string{meta(2), db}, "later version"},
		{[]string{"server/db/state.db"}, []string{db}, "begins with"},
		{[]string{"snapshot.json"}, []string{meta(1)}, "lacks server/db/state.db"},
		{[]string{"snapshot.json", "server/db/state.db", "../../../etc/passwd"}, []string{meta(1), db, ""}, "passwd"},
		{[]string{"snapshot.json", "server/db/state.db", "server/db/state.db"}, []string{meta(1), db, db}, "twice"},
		{[]string{"snapshot.json", "server/db/state.db"}, []string{strings.Replace(meta(1), `"keys":2`, `"keys":3`, 1), db}, "keys"},
	} {
		archive := filepath.Join(t.TempDir(), "archive")
		var b bytes.Buffer
		z, err := zstd.NewWriter(&b)
		if err != nil {
			t.Fatal(err)
		}
		w := tar.NewWriter(z)
		for n, name := range row.names {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(row.contents[n])), Mode: 0o600}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write([]byte(row.contents[n])); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(w.Close(), z.Close()); err != nil {
			t.Fatal(err)
		}
		write(t, archive, b.String())
		_, err = snapshot.Restore(t.Context(), i.dir, archive, "v2", restoredAt)
		oneLine(t, err, "cannot be restored", row.want)
	}
}
