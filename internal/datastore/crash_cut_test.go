package datastore_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/kubernetes"
)

// files are the contents of a store's files at one moment.
type files struct{ db, wal []byte }

func readFiles(t *testing.T, path string) files {
	t.Helper()
	var f files
	var err error
	if f.db, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	if f.wal, err = os.ReadFile(path + "-wal"); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f files) write(t *testing.T, path string) {
	t.Helper()
	for name, b := range map[string][]byte{path: f.db, path + "-wal": f.wal} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCrashByCut cuts off what a store writes at any byte, as a power cut does, and starts it from what is left, again and
// again. The files are copied before a write and after it, and what is between is cut. SQLite writes the log and syncs it
// before a write is acknowledged, and now and then folds it back into the database after that, so that one of the two is cut.
func TestCrashByCut(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	path := filepath.Join(t.TempDir(), "state.db")
	l := newLedger()
	lost, folded := 0, 0
	for round := range *crashRounds {
		s, stop := run(t, path)
		w := &cutWriter{t: t, r: r, c: directClient(t, s), ledger: l, round: round}
		var left files
		var safe int64
		if r.IntN(3) == 0 {
			left = w.cutFolding(path)
			safe = l.last
			folded++
		} else {
			w.write(r.IntN(300))
			safe = l.last
			left = w.cutWrite(path)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		path = filepath.Join(t.TempDir(), "state.db")
		left.write(t, path)
		f := look(t, path, 0)
		if f.revision < safe || f.revision > l.last {
			t.Fatalf("round %d: the store is at %d, want from %d to %d", round, f.revision, safe, l.last)
		}
		l.compare(t, f, f.revision)
		lost += int(l.last - f.revision)
		l.forget(f.revision)
	}
	t.Logf("%d rounds, %d of them in the folding back; %d writes were cut off, none that was acknowledged before", *crashRounds, folded, lost)
}

// cutWrite cuts the log in a write.
func (w *cutWriter) cutWrite(path string) files {
	w.t.Helper()
	before := readFiles(w.t, path)
	w.write(1)
	after := readFiles(w.t, path)
	return files{before.db, cut(w.r, before.wal, after.wal)}
}

// cutFolding writes until the log is folded back, and cuts the database in that.
func (w *cutWriter) cutFolding(path string) files {
	w.t.Helper()
	before := readFiles(w.t, path)
	for range 5000 {
		was := modified(w.t, path)
		w.write(1)
		if modified(w.t, path) == was {
			continue
		}
		after := readFiles(w.t, path)
		return files{cut(w.r, before.db, after.db), after.wal}
	}
	w.t.Fatal("the log was not folded back")
	return files{}
}

func modified(t *testing.T, path string) time.Time {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.ModTime()
}

// forget drops what the cut has taken: the revisions will be given out again.
func (l *ledger) forget(after int64) {
	l.last = after
	for revision := range l.changes {
		if revision > after {
			delete(l.changes, revision)
		}
	}
}

// cut is a file that changed from one content to another, as it is when only the first so many bytes of what changed were
// written. Sometimes garbage, which a disk leaves in a new block, is behind that.
func cut(r *rand.Rand, before, after []byte) []byte {
	same := 0
	for same < min(len(before), len(after)) && before[same] == after[same] {
		same++
	}
	at := same + r.IntN(len(after)-same+1)
	left := bytes.Clone(after[:at])
	if at < len(before) {
		return append(left, before[at:]...) // written over what is no longer needed
	}
	switch tail := 1 + r.IntN(20000); r.IntN(4) {
	case 0:
		left = append(left, make([]byte, tail)...)
	case 1:
		for range tail {
			left = append(left, byte(r.Uint32()))
		}
	case 2:
		left = append(left, left[:min(tail, len(left))]...)
	}
	return left
}

// cutWriter makes random changes one after the other.
type cutWriter struct {
	t      *testing.T
	r      *rand.Rand
	c      *kubernetes.Client
	ledger *ledger
	round  int
}

func (w *cutWriter) write(n int) {
	w.t.Helper()
	now := w.ledger.state(w.ledger.last)
	for i := range n {
		c := change{key: fmt.Sprintf("%s%d", crashPrefix, w.r.IntN(200))}
		guard := now[c.key].revision
		var err error
		ok := false
		if guard != 0 && w.r.IntN(4) == 0 {
			var d kubernetes.DeleteResponse
			d, err = w.c.Kubernetes.OptimisticDelete(w.t.Context(), c.key, guard, kubernetes.DeleteOptions{})
			c.revision, ok = d.Revision, d.Succeeded
			delete(now, c.key)
		} else {
			c.value = crashValue(fmt.Sprintf("%d-%d-%d", w.round, i, w.r.Uint64()), w.r.IntN(12000))
			var p kubernetes.PutResponse
			p, err = w.c.Kubernetes.OptimisticPut(w.t.Context(), c.key, []byte(c.value), guard, kubernetes.PutOptions{})
			c.revision, ok = p.Revision, p.Succeeded
			now[c.key] = c
		}
		if err != nil || !ok {
			w.t.Fatalf("%s, which was at %d: %v, %v", c, guard, ok, err)
		}
		w.ledger.add(w.t, c)
	}
}
