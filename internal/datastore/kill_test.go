package datastore_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// writerPath, when set, makes this test binary the process that gets killed.
const writerPath = "CLUSTERD_TEST_DATASTORE_WRITER"

// TestWriter is the child of TestKillLosesNothingAcknowledged: it writes until
// it is killed and prints each key after it was acknowledged.
func TestWriter(t *testing.T) {
	path := os.Getenv(writerPath)
	if path == "" {
		t.Skip("only runs as a child process")
	}
	s, _ := run(t, path)
	var wg sync.WaitGroup
	for w := range 4 {
		c := client(t, s)
		wg.Go(func() { writeForever(t, c, fmt.Sprintf("%d-%d", os.Getpid(), w)) })
	}
	wg.Wait()
}

func writeForever(t *testing.T, c *clientv3.Client, name string) {
	for i := 0; ; i++ {
		key := fmt.Sprintf("/registry/kill/%s-%d", name, i)
		if err := create(t.Context(), c, key, key); err != nil {
			t.Error(err)
			return
		}
		fmt.Fprintln(os.Stderr, "acknowledged", key)
	}
}

func TestKillLosesNothingAcknowledged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	acknowledged := map[string]bool{}
	for round := range 10 {
		before := len(acknowledged)
		killWriter(t, path, acknowledged)
		if len(acknowledged) == before {
			t.Fatalf("round %d: nothing was written", round)
		}
		verify(t, path, acknowledged)
	}
	t.Logf("%d acknowledged writes survived", len(acknowledged))
}

// killWriter runs a writer, kills it at a random moment and adds what it had
// got acknowledged.
func killWriter(t *testing.T, path string, acknowledged map[string]bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWriter$")
	cmd.Env = append(os.Environ(), writerPath+"="+path)
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var kill *time.Timer
	lines := bufio.NewScanner(pipe)
	for lines.Scan() {
		key, ok := strings.CutPrefix(lines.Text(), "acknowledged ")
		if !ok {
			continue
		}
		acknowledged[key] = true
		if kill == nil {
			kill = time.AfterFunc(50*time.Millisecond+rand.N(200*time.Millisecond), func() { _ = cmd.Process.Kill() })
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the writer ended by itself")
	}
}

// verify starts the store again and looks for every acknowledged key.
func verify(t *testing.T, path string, acknowledged map[string]bool) {
	t.Helper()
	s, stop := run(t, path)
	got, err := client(t, s).Get(context.Background(), "/registry/kill/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, kv := range got.Kvs {
		there[string(kv.Key)] = string(kv.Key) == string(kv.Value)
	}
	for key := range acknowledged {
		if !there[key] {
			t.Errorf("%s was acknowledged and is lost", key)
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkIntegrity(t, path)
}

func checkIntegrity(t *testing.T, path string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var result string
	if err := db.QueryRow("PRAGMA integrity_check").Scan(&result); err != nil || result != "ok" {
		t.Fatalf("integrity: %s, %v", result, err)
	}
}
