package pki_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clusterd/clusterd/internal/lifecycle"
	"github.com/clusterd/clusterd/internal/pki"
	"github.com/clusterd/clusterd/internal/testkit"
)

func leaves() ([]pki.Leaf, error) { return []pki.Leaf{serving(), admin()}, nil }

// names records what has changed.
type names struct {
	mu   sync.Mutex
	list []string
}

func (n *names) add(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, name)
}

func (n *names) expect(t *testing.T, when string, want ...string) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if !slices.Equal(n.list, want) {
		t.Errorf("%s: changed %q, want %q", when, n.list, want)
	}
}

// running runs r until the test ends, which it has to survive. Called in a
// synctest bubble.
func running(t *testing.T, r *pki.Renewer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- lifecycle.Run(ctx, r, lifecycle.Options{}) }()
	synctest.Wait()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestRenewerRenewsInTime(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p, err := pki.Open(dir, pki.Options{}) // by the bubble's clock
		if err != nil {
			t.Fatal(err)
		}
		var changed names
		stop := running(t, p.Renewer("certificates", 24*time.Hour, leaves, changed.add))
		defer stop()
		changed.expect(t, "at the start", "serving", "admin")
		time.Sleep(pki.LeafLife - pki.RenewBefore - 24*time.Hour)
		synctest.Wait()
		changed.expect(t, "after 274 days", "serving", "admin")
		time.Sleep(3 * 24 * time.Hour)
		synctest.Wait()
		changed.expect(t, "after 277 days", "serving", "admin", "serving", "admin")
	})
}

func TestKickChecksNow(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p, err := pki.Open(dir, pki.Options{})
		if err != nil {
			t.Fatal(err)
		}
		l, changes := serving(), 0
		r := p.Renewer("certificates", 0, func() ([]pki.Leaf, error) { return []pki.Leaf{l}, nil }, func(string) { changes++ })
		r.Kick() // before it runs: does not block, changes nothing
		r.Kick()
		stop := running(t, r)
		defer stop()
		if changes != 1 {
			t.Errorf("%d changes at the start, want 1", changes)
		}
		l.DNS = append(l.DNS, "new.example")
		r.Kick()
		synctest.Wait()
		if changes != 2 || !slices.Contains(parsed(t, p, l.Name).DNSNames, "new.example") {
			t.Errorf("%d changes, names %v", changes, parsed(t, p, l.Name).DNSNames)
		}
	})
}

func TestRenewerFailsAtTheStartOnly(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		p, err := pki.Open(dir, pki.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		broken := errors.New("no addresses")
		var fault atomic.Pointer[error]
		list := func() ([]pki.Leaf, error) {
			if err := fault.Load(); err != nil {
				return nil, *err
			}
			return []pki.Leaf{serving()}, nil
		}
		stop := running(t, p.Renewer("certificates", time.Hour, list, nil))
		fault.Store(&broken)
		time.Sleep(time.Hour + time.Second)
		synctest.Wait()
		stop()
		if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "no addresses") {
			t.Errorf("log: %q, want one line with the cause", got)
		}
		err = p.Renewer("certificates", time.Hour, list, nil).Run(t.Context(), func() { t.Error("ready") })
		if !errors.Is(err, broken) {
			t.Errorf("got %v, want %v", err, broken)
		}
	})
}

func TestOneBadLeafDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	p := open(t, t.TempDir(), newClock())
	bad := serving()
	bad.Name, bad.CA = "bad", "x"
	list := func() ([]pki.Leaf, error) { return []pki.Leaf{bad, serving()}, nil }
	var changed names
	r := p.Renewer("certificates", 0, list, changed.add)
	if err := r.Run(t.Context(), func() {}); err == nil || !strings.Contains(err.Error(), "certificate bad") {
		t.Errorf("got %v, want an error that names the leaf", err)
	}
	changed.expect(t, "after an error", "serving")
}

func TestRenewerContract(t *testing.T) {
	testkit.Component(t, func(t *testing.T) lifecycle.Component {
		return open(t, t.TempDir(), newClock()).Renewer("certificates", 0, leaves, nil)
	})
}
