package keyring_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/clusterd/clusterd/internal/join"
	"github.com/clusterd/clusterd/internal/lifecycle"
	"github.com/clusterd/clusterd/internal/pki"
	"github.com/clusterd/clusterd/internal/testkit"
	"github.com/clusterd/clusterd/server/keyring"
)

const patience = 30 * time.Second

// memory is a datastore of one key.
type memory struct {
	mu       sync.Mutex
	value    []byte
	revision int64
	lose     bool // answers of writes
	waiting  *sync.WaitGroup
	watches  []chan clientv3.WatchResponse
}

func (m *memory) Watch(context.Context, string, ...clientv3.OpOption) clientv3.WatchChan {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := make(chan clientv3.WatchResponse, 100)
	m.watches = append(m.watches, w)
	return w
}

// endWatches is a datastore that goes away and comes back.
func (m *memory) endWatches() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.watches {
		close(w)
	}
	m.watches = nil
}

func (m *memory) Get(context.Context, string, kubernetes.GetOptions) (kubernetes.GetResponse, error) {
	m.mu.Lock()
	r := kubernetes.GetResponse{Revision: m.revision}
	if m.revision > 0 {
		r.KV = &mvccpb.KeyValue{Value: m.value, ModRevision: m.revision}
	}
	waiting := m.waiting
	m.mu.Unlock()
	if waiting != nil && r.KV == nil { // until all have seen that there is nothing
		waiting.Done()
		waiting.Wait()
	}
	return r, nil
}

func (m *memory) OptimisticPut(_ context.Context, _ string, value []byte, at int64, _ kubernetes.PutOptions) (kubernetes.PutResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if at != m.revision {
		return kubernetes.PutResponse{Revision: m.revision}, nil
	}
	m.value = value
	m.revision++
	for _, w := range m.watches {
		w <- clientv3.WatchResponse{Events: []*clientv3.Event{{}}}
	}
	if m.lose {
		m.lose = false
		return kubernetes.PutResponse{}, errors.New("the connection is gone")
	}
	return kubernetes.PutResponse{Succeeded: true, Revision: m.revision}, nil
}

func (m *memory) content() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.value
}

// machine is a server's disk.
type machine string

func newMachine(t *testing.T) machine {
	t.Helper()
	return machine(t.TempDir())
}

func (m machine) pki() pki.Dir         { return pki.Dir(filepath.Join(string(m), "tls")) }
func (m machine) file(n string) string { return filepath.Join(string(m), n) }

func (m machine) read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(m.file(name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func (m machine) config(s *memory) keyring.Config {
	return keyring.Config{
		Open:  func(context.Context) (keyring.Store, func(), error) { return s, func() {}, nil },
		Shown: "memory://", PKI: m.pki(), TokenFile: m.file("token"), JoinTokenFile: m.file("server-token"),
		Settings: map[string]string{"service-cidr": "10.43.0.0/16"},
	}
}

// start runs a server's keyring until it is ready, then f, and to its end.
func start(t *testing.T, c keyring.Config, f func()) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- keyring.New(c, slog.New(slog.DiscardHandler)).Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
		f()
		cancel()
		return <-ended
	case err := <-ended:
		return err
	case <-time.After(patience):
		t.Fatal("not ready")
		return nil
	}
}

func nothing() {}

// same compares what two servers have.
func same(t *testing.T, a, b machine) {
	t.Helper()
	for _, path := range a.pki().Lasting() {
		name := "tls/" + filepath.Base(path)
		if a.read(t, name) != b.read(t, name) {
			t.Errorf("%s is not the same on both", name)
		}
		if st, err := os.Stat(b.file(name)); err != nil || strings.HasSuffix(name, ".key") && st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, st.Mode(), err)
		}
	}
	for _, name := range []string{"token", "server-token"} {
		if a.read(t, name) != b.read(t, name) {
			t.Errorf("%s is not the same on both", name)
		}
		if st, err := os.Stat(b.file(name)); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, st.Mode(), err)
		}
	}
}

// with is a configuration with the token as a user copies it.
func with(c keyring.Config, token string) keyring.Config {
	if hash, secret, ok := join.Part(token); ok {
		c.CAHash, c.Token = hash, secret
	} else {
		c.Token = token
	}
	return c
}

func TestFurtherServer(t *testing.T) {
	s, first, second := &memory{}, newMachine(t), newMachine(t)
	if err := start(t, first.config(s), nothing); err != nil {
		t.Fatal(err)
	}
	for _, path := range first.pki().Lasting() {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(s.content(), b[len(b)/2:len(b)/2+16]) {
			t.Errorf("the datastore shows %s", path)
		}
	}
	if bytes.Contains(s.content(), []byte(first.read(t, "token"))) {
		t.Error("the datastore shows the token")
	}
	if err := start(t, with(second.config(s), first.read(t, "server-token")), nothing); err != nil {
		t.Fatal(err)
	}
	same(t, first, second)
	before := s.content()
	if err := start(t, second.config(s), nothing); err != nil { // a second time, without a token
		t.Fatal(err)
	}
	if !bytes.Equal(before, s.content()) {
		t.Error("a restart has written to the datastore")
	}
}

func TestRefusals(t *testing.T) {
	s, first := &memory{}, newMachine(t)
	if err := start(t, first.config(s), nothing); err != nil {
		t.Fatal(err)
	}
	hash, secret, _ := join.Part(first.read(t, "server-token"))
	stranger := newMachine(t)
	if err := start(t, stranger.config(&memory{}), nothing); err != nil {
		t.Fatal(err)
	}
	other := newMachine(t).config(s)
	other.Settings = map[string]string{"service-cidr": "10.99.0.0/16"}
	for name, row := range map[string]struct {
		config keyring.Config
		token  string
		words  []string
	}{
		"none":          {newMachine(t).config(s), "", []string{"memory://", "--token", "server/server-token"}},
		"wrong":         {newMachine(t).config(s), "sesame", []string{"memory://", "--token", "server/server-token"}},
		"for nodes":     {newMachine(t).config(s), join.Whole(hash, join.Split(secret).Bearer()), []string{"for nodes"}},
		"other cluster": {newMachine(t).config(s), join.Whole(strings.Repeat("0", 64), secret), []string{"--datastore-endpoint", "another hash"}},
		"other data":    {stranger.config(s), secret, []string{"--data-dir", "another cluster"}},
		"settings":      {other, secret, []string{"--service-cidr is 10.99.0.0/16 here", "10.43.0.0/16"}},
	} {
		before := map[string]string{}
		dir := filepath.Dir(row.config.TokenFile)
		for _, path := range row.config.PKI.Lasting() {
			b, _ := os.ReadFile(path)
			before[path] = string(b)
		}
		err := start(t, with(row.config, row.token), nothing)
		if err == nil {
			t.Errorf("%s: let in", name)
			continue
		}
		for _, w := range row.words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q is not in %v", name, w, err)
			}
		}
		if strings.Contains(err.Error(), secret) || row.token != "" && strings.Contains(err.Error(), row.token) {
			t.Errorf("%s: the token is shown", name)
		}
		for path, was := range before {
			if b, _ := os.ReadFile(path); string(b) != was {
				t.Errorf("%s: %s was changed", name, path)
			}
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "tls-new-*")); left != nil {
			t.Errorf("%s: left behind %v", name, left)
		}
	}
}

// TestAllAtOnce starts servers on an empty datastore that all have seen that it is empty.
func TestAllAtOnce(t *testing.T) {
	const n = 3
	s := &memory{waiting: &sync.WaitGroup{}}
	s.waiting.Add(n)
	all := make([]machine, n)
	errs := make([]error, n)
	var running sync.WaitGroup
	for i := range all {
		all[i] = newMachine(t)
		running.Go(func() { errs[i] = start(t, with(all[i].config(s), "ours"), nothing) })
	}
	running.Wait()
	for i := range all {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		same(t, all[0], all[i])
	}
}

// TestAnswerIsLost has the first write done without an answer.
func TestAnswerIsLost(t *testing.T) {
	s, first, second := &memory{lose: true}, newMachine(t), newMachine(t)
	if err := start(t, first.config(s), nothing); err != nil {
		t.Fatal(err)
	}
	if err := start(t, with(second.config(s), first.read(t, "server-token")), nothing); err != nil {
		t.Fatal(err)
	}
	same(t, first, second)
}

// TestEarlierServer takes along what a server had before servers shared anything.
func TestEarlierServer(t *testing.T) {
	s, first := &memory{}, newMachine(t)
	if _, err := pki.Open(string(first.pki()), pki.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(first.file("token"), []byte("old secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := first.read(t, "tls/server-ca.crt")
	if err := start(t, first.config(s), nothing); err != nil {
		t.Fatal(err)
	}
	if first.read(t, "tls/server-ca.crt") != before || first.read(t, "token") != "old secret" {
		t.Error("the authority or the token is another one")
	}
}

func TestContract(t *testing.T) {
	s := &memory{}
	m := newMachine(t)
	testkit.Component(t, func(*testing.T) lifecycle.Component {
		return keyring.New(m.config(s), slog.New(slog.DiscardHandler))
	})
}
