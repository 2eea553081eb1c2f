package datastore_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/kubernetes"
)

// writerPath, when set, makes this test binary the process that gets killed.
const writerPath = "CLUSTERD_TEST_DATASTORE_WRITER"

const (
	crashWriters = 8
	writerKeys   = 30
)

// TestCrashWriter is the child of TestCrashByKill: it creates, changes and deletes until it is killed, says what it asks for
// before and which revision that got after, and compacts meanwhile what was there before it.
func TestCrashWriter(t *testing.T) {
	path := os.Getenv(writerPath)
	if path == "" {
		t.Skip("only runs as a child process")
	}
	fmt.Fprintln(os.Stderr, "begins")
	s, _ := run(t, path)
	c := directClient(t, s)
	list, err := c.Kubernetes.List(t.Context(), crashPrefix, kubernetes.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	revisions := map[string]int64{}
	for _, kv := range list.Kvs {
		revisions[string(kv.Key)] = kv.ModRevision
	}
	var wg sync.WaitGroup
	for w := range crashWriters {
		own := map[string]int64{}
		for i := range writerKeys {
			key := fmt.Sprintf("%s%d/%d", crashPrefix, w, i)
			own[key] = revisions[key]
		}
		wg.Go(func() { writeForever(t, c, w, own) })
	}
	if _, err := c.KV.Compact(t.Context(), list.Revision-1); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

func writeForever(t *testing.T, c *kubernetes.Client, writer int, revisions map[string]int64) {
	for i := 0; ; i++ {
		key := fmt.Sprintf("%s%d/%d", crashPrefix, writer, rand.N(writerKeys))
		revision, err := int64(0), error(nil)
		if revisions[key] != 0 && rand.N(3) == 0 {
			fmt.Fprintf(os.Stderr, "asks %d %s\n", writer, key)
			var r kubernetes.DeleteResponse
			r, err = c.Kubernetes.OptimisticDelete(context.Background(), key, revisions[key], kubernetes.DeleteOptions{})
			revision, revisions[key] = r.Revision, 0
		} else {
			id, size := fmt.Sprintf("%d-%d-%d", os.Getpid(), writer, i), rand.N(6000)
			fmt.Fprintf(os.Stderr, "asks %d %s %s %d\n", writer, key, id, size)
			var r kubernetes.PutResponse
			r, err = c.Kubernetes.OptimisticPut(context.Background(), key, []byte(crashValue(id, size)), revisions[key], kubernetes.PutOptions{})
			revision, revisions[key] = r.Revision, r.Revision
		}
		if err != nil {
			t.Errorf("write %s: %v", key, err)
			return
		}
		fmt.Fprintf(os.Stderr, "acknowledged %d %d\n", writer, revision)
	}
}

func crashValue(id string, size int) string { return id + strings.Repeat("x", size) }

// TestCrashByKill kills a store under load again and again, with SIGKILL and at any moment, its start among them.
func TestCrashByKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	l := newLedger()
	cut, before := 0, int64(1) // the health key's
	for range *crashRounds {
		open := killWriter(t, path, l)
		f := look(t, path, before)
		cut += l.settle(t, f, before, open)
		l.compare(t, f, f.revision)
		before = f.end
	}
	if len(l.changes) < *crashRounds {
		t.Errorf("%d writes in %d rounds: the test tests nothing", len(l.changes), *crashRounds)
	}
	t.Logf("%d rounds, %d acknowledged writes are all there, and %d that were killed before that", *crashRounds, len(l.changes)-cut, cut)
}

// killWriter runs a writer, kills it at a random moment, adds what was acknowledged to the ledger and returns what was asked
// for and not answered, at most one change a writer.
func killWriter(t *testing.T, path string, l *ledger) []change {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestCrashWriter$")
	cmd.Env = append(os.Environ(), writerPath+"="+path)
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := func(most time.Duration) { time.AfterFunc(rand.N(most), func() { _ = cmd.Process.Kill() }) }
	early := rand.N(5) == 0
	asked := map[int]change{}
	started := false
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		var c change
		var writer, size int
		var id string
		line := lines.Text()
		if line == "begins" && early {
			kill(20 * time.Millisecond)
		} else if n, _ := fmt.Sscanf(line, "asks %d %s %s %d", &writer, &c.key, &id, &size); n == 4 || n == 2 {
			if n == 4 {
				c.value = crashValue(id, size)
			}
			asked[writer] = c
			if !started && !early {
				kill(400 * time.Millisecond)
			}
			started = true
		} else if n, _ := fmt.Sscanf(line, "acknowledged %d %d", &writer, &c.revision); n == 2 {
			c.key, c.value = asked[writer].key, asked[writer].value
			delete(asked, writer)
			l.add(t, c)
		} else if line != "begins" {
			t.Errorf("the writer says %q", line)
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the writer ended by itself")
	}
	var open []change
	for _, c := range asked {
		open = append(open, c)
	}
	return open
}

// settle adds to the ledger those open changes that the store has made, and wants its events after a revision to be those of
// the ledger. It returns how many were open.
func (l *ledger) settle(t *testing.T, f found, after int64, open []change) (made int) {
	t.Helper()
	seen := map[int64]bool{}
	for _, e := range f.events {
		seen[e.revision] = true
		if c, acknowledged := l.changes[e.revision]; acknowledged {
			if c != e {
				t.Fatalf("acknowledged was the %s, there is the %s", c, e)
			}
			continue
		}
		asked := false
		for i, o := range open {
			if o.key == e.key && o.value == e.value {
				open = append(open[:i], open[i+1:]...)
				asked = true
				break
			}
		}
		if !asked {
			t.Fatalf("nobody asked for the %s", e)
		}
		l.add(t, e)
		made++
	}
	for _, c := range l.changes {
		if c.revision > after && !seen[c.revision] {
			t.Fatalf("lost: %s", c)
		}
	}
	return made
}
