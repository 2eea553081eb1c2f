package server

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

	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/datastore"
	"github.com/clusterd/clusterd/internal/datastore/engine"
	"github.com/clusterd/clusterd/internal/lifecycle"
	"github.com/clusterd/clusterd/internal/options"
	"github.com/clusterd/clusterd/internal/snapshot"
	"github.com/clusterd/clusterd/internal/testkit"
)

// lines is a log that can be read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// withStore makes the component beside a datastore that is not open yet.
func withStore(t *testing.T, root string, log *slog.Logger) (*snapshots, *datastore.Store) {
	t.Helper()
	dir, err := datadir.New(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir.RunDir()) })
	if err := dir.PrepareServer(); err != nil {
		t.Fatal(err)
	}
	store, err := datastore.New(datastore.Config{Path: dir.DB()}, log)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Node: options.Node{NodeName: "one"}, Snapshots: SnapshotConfig{Name: "scheduled", Retention: 2}}
	return newSnapshots(cfg, Deps{Dir: dir, Version: "v2", Log: log}, store), store
}

// runBoth runs the datastore with its snapshots until the end of f.
func runBoth(t *testing.T, s *snapshots, store *datastore.Store, f func(context.Context)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- s.around(store).Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	f(ctx)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func (s *snapshots) named(t *testing.T, prefix string) []snapshot.Info {
	t.Helper()
	names, err := s.folder.Names(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var found []snapshot.Info
	for _, name := range names {
		if strings.HasPrefix(name, prefix) {
			found = append(found, s.folder.Describe(t.Context(), name))
		}
	}
	return found
}

// A version that finds another one's datastore saves it first, once.
func TestSnapshotBeforeUpgrade(t *testing.T) {
	root := t.TempDir()
	nothing := func(context.Context) {}
	var log lines
	s, store := withStore(t, root, slog.New(slog.NewTextHandler(&log, nil)))
	runBoth(t, s, store, nothing) // an empty data directory
	if found := s.named(t, ""); found != nil || snapshot.LastVersion(s.d.Dir) != "v2" {
		t.Errorf("a first start has made %+v; the datastore is of %s", found, snapshot.LastVersion(s.d.Dir))
	}
	before, err := engine.Inspect(t.Context(), s.d.Dir.DB())
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"v2", "v1", ""} { // the last left no note
		if version == "" {
			err = os.Remove(s.d.Dir.DBVersion())
		} else {
			err = os.WriteFile(s.d.Dir.DBVersion(), []byte(version+"\n"), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			s, store = withStore(t, root, s.log)
			runBoth(t, s, store, nothing)
		}
		found := s.named(t, "upgrade-one-")
		switch {
		case version == "v2" && found != nil:
			t.Errorf("the same version has made %+v", found)
		case version == "v1" && (len(found) != 1 || found[0].Version != "v1" || found[0].Revision != before.Revision+2):
			t.Errorf("there are %+v, want one of v1 at revision %d", found, before.Revision+2)
		case version == "" && (len(found) != 1 || found[0].Version != "unknown"):
			t.Errorf("there are %+v, want one of an unknown version", found)
		}
		for _, i := range found {
			if err := s.folder.Delete(t.Context(), i.Name); err != nil {
				t.Error(err)
			}
		}
	}
	if n := strings.Count(log.String(), "snapshot saved"); n != 2 || strings.Contains(log.String(), "WARN") {
		t.Errorf("%d lines about snapshots:\n%s", n, &log)
	}
}

// Without a snapshot the server starts all the same, says so, and tries again at the next start.
func TestNoSnapshotBeforeUpgrade(t *testing.T) {
	root := t.TempDir()
	var log lines
	s, store := withStore(t, root, slog.New(slog.NewTextHandler(&log, nil)))
	runBoth(t, s, store, func(context.Context) {})
	if err := os.WriteFile(s.d.Dir.DBVersion(), []byte("v1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(string(s.folder), nil, 0o600); err != nil { // no directory
		t.Fatal(err)
	}
	for n := range 2 {
		s, store = withStore(t, root, s.log)
		runBoth(t, s, store, func(context.Context) {})
		if got := strings.Count(log.String(), "level=WARN"); got != n+1 || !strings.Contains(log.String(), "clusterd snapshot save") {
			t.Errorf("%d warnings after %d starts:\n%s", got, n+1, &log)
		}
	}
	if v := snapshot.LastVersion(s.d.Dir); v != "v1" {
		t.Errorf("the datastore is of %s", v)
	}
}

// times is a schedule that is due as often as the test wants.
type times <-chan time.Time

func (c times) Next(time.Time) time.Time { return <-c }

func TestScheduledSnapshots(t *testing.T) {
	var log lines
	s, store := withStore(t, t.TempDir(), slog.New(slog.NewTextHandler(&log, nil)))
	due := make(chan time.Time)
	s.cfg.Schedule = times(due)
	if err := os.MkdirAll(string(s.folder), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"scheduled-one-20200101T000000Z", "scheduled-one-20200102T000000Z", "scheduled-one-20200103T000000Z", "mine"} {
		if err := os.WriteFile(s.folder.Path(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	runBoth(t, s, store, func(ctx context.Context) {
		ended := make(chan error, 1)
		ctx, cancel := context.WithCancel(ctx)
		go func() { ended <- s.Run(ctx, func() {}) }()
		due <- time.Now()
		due <- time.Now().Add(time.Hour) // it has asked again, so the first one is done
		if found := s.named(t, ""); len(found) != 3 || found[0].Name != "mine" || found[1].Name != "scheduled-one-20200103T000000Z" || found[2].Fault != "" {
			t.Errorf("there are %+v", found)
		}
		// Another is asked for by the socket.
		made, err := snapshot.Ask(ctx, s.d.Dir.SnapshotSocket(), snapshot.Order{Name: "asked", Folder: snapshot.Folder(t.TempDir())})
		for errors.Is(err, snapshot.ErrNoServer) && !strings.Contains(log.String(), "WARN") { // until it listens
			made, err = snapshot.Ask(ctx, s.d.Dir.SnapshotSocket(), snapshot.Order{Name: "asked", Folder: snapshot.Folder(t.TempDir())})
		}
		if err != nil || made.Version != "v2" || filepath.Base(made.Location) != "asked.tar.zst" {
			t.Errorf("made %+v, %v", made, err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	if n := strings.Count(log.String(), "snapshot saved"); n != 2 || strings.Contains(log.String(), "WARN") {
		t.Errorf("%d lines about snapshots:\n%s", n, &log)
	}
}

func TestScheduledSnapshotFails(t *testing.T) {
	var log lines
	s, _ := withStore(t, t.TempDir(), slog.New(slog.NewTextHandler(&log, nil)))
	s.scheduled(t.Context()) // the datastore is not open
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "clusterd snapshot save") || s.named(t, "") != nil {
		t.Errorf("said:\n%s", &log)
	}
}

func TestSnapshotsKeepContract(t *testing.T) {
	testkit.Component(t, func(t *testing.T) lifecycle.Component {
		s, _ := withStore(t, t.TempDir(), slog.New(slog.DiscardHandler))
		schedule, err := snapshot.ParseSchedule("@daily")
		if err != nil {
			t.Fatal(err)
		}
		s.cfg.Schedule = schedule
		return s
	})
}
