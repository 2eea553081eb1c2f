package election_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterd/clusterd/internal/lifecycle"
	"github.com/clusterd/clusterd/internal/testkit"
	"github.com/clusterd/clusterd/internal/testkit/kubeapi"
	"github.com/clusterd/clusterd/server/election"
)

const lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/one-of-us"

const patience = 30 * time.Second

// api is a place for leases.
func api(t *testing.T) *kubeapi.Server {
	t.Helper()
	s := kubeapi.New(t)
	s.Define("coordination.k8s.io", "v1", "Lease", "leases", true)
	return s
}

func holder(s *kubeapi.Server) string {
	o := s.Get(lease)
	if o == nil {
		return ""
	}
	name, _ := o["spec"].(kubeapi.Object)["holderIdentity"].(string)
	return name
}

// set counts how often it was made, and knows whether it runs.
type set struct {
	api     *kubeapi.Server
	made    atomic.Int64
	running atomic.Bool
	outside atomic.Bool // it ran when another had the lease, or nobody
	failure error
}

func (s *set) make() (lifecycle.Component, error) {
	s.made.Add(1)
	return lifecycle.Func("set", func(ctx context.Context, ready func()) error {
		s.running.Store(true)
		ready()
		if s.failure != nil {
			return s.failure
		}
		<-ctx.Done()
		if h := holder(s.api); h != "" && h != "me" {
			s.outside.Store(true)
		}
		s.running.Store(false)
		return nil
	}), nil
}

func config(s *kubeapi.Server, made *set) election.Config {
	return election.Config{
		RESTConfig: s.Config(), Namespace: "kube-system", Lease: "one-of-us",
		LeaseDuration: 2 * time.Second, RenewDeadline: time.Second, RetryPeriod: 100 * time.Millisecond,
		Identity: func() (string, error) { return "me", nil }, Make: made.make, Elsewhere: func() {},
	}
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not after %s: %s", patience, what)
		}
	}
}

// run runs an election to the end of f.
func run(t *testing.T, c election.Config, f func(ready <-chan struct{})) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- election.New(c, slog.New(slog.DiscardHandler)).Run(ctx, func() { close(ready) }) }()
	f(ready)
	cancel()
	select {
	case err := <-ended:
		return err
	case <-time.After(patience):
		t.Fatal("it does not end")
		return nil
	}
}

func TestLeaseIsGivenUpWhenNothingRunsAnyMore(t *testing.T) {
	s := api(t)
	made := &set{api: s}
	err := run(t, config(s, made), func(ready <-chan struct{}) {
		<-ready
		if !made.running.Load() || holder(s) != "me" {
			t.Errorf("it is ready: running %t, the lease is of %q", made.running.Load(), holder(s))
		}
	})
	if err != nil || made.running.Load() || holder(s) != "" {
		t.Errorf("after the end: %v, running %t, the lease is of %q", err, made.running.Load(), holder(s))
	}
}

// TestAnotherServer has one that leads, and then is no more heard of.
func TestAnotherServer(t *testing.T) {
	s := api(t)
	made := &set{api: s}
	s.Put(lease, kubeapi.Object{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": kubeapi.Object{"name": "one-of-us", "namespace": "kube-system"},
		"spec": kubeapi.Object{"holderIdentity": "other", "leaseDurationSeconds": 2, "renewTime": time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00")}})
	c := config(s, made)
	told := make(chan struct{})
	c.Elsewhere = func() { close(told) }
	err := run(t, c, func(ready <-chan struct{}) {
		<-told
		<-ready
		if made.made.Load() != 0 {
			t.Error("it runs beside another server's")
		}
		until(t, "the other server's lease has ended", made.running.Load)
	})
	if err != nil || made.outside.Load() {
		t.Errorf("%v, ran outside of its lease: %t", err, made.outside.Load())
	}
}

// TestLeaseIsLost has the API refuse everything for a while.
func TestLeaseIsLost(t *testing.T) {
	s := api(t)
	made := &set{api: s}
	err := run(t, config(s, made), func(ready <-chan struct{}) {
		<-ready
		s.Refuse(func(*http.Request) *metav1.Status {
			return &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: "the datastore is away"}
		})
		until(t, "it has stopped", func() bool { return !made.running.Load() })
		s.Refuse(nil)
		until(t, "it runs again", func() bool { return made.running.Load() && made.made.Load() == 2 })
	})
	if err != nil {
		t.Error(err)
	}
}

func TestFailureIsOneOfTheProcess(t *testing.T) {
	s := api(t)
	made := &set{api: s, failure: errors.New("broken")}
	ended := make(chan error, 1)
	go func() {
		ended <- election.New(config(s, made), slog.New(slog.DiscardHandler)).Run(t.Context(), func() {})
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, made.failure) {
			t.Errorf("got %v", err)
		}
	case <-time.After(patience):
		t.Error("it goes on")
	}
}

func TestContract(t *testing.T) {
	s := api(t)
	testkit.Component(t, func(*testing.T) lifecycle.Component {
		return election.New(config(s, &set{api: s}), slog.New(slog.DiscardHandler))
	}, testkit.MayLeak("net/http/httptest"), testkit.MayLeak("net/http.(*conn)"), testkit.MayLeak("net/http.(*Server)"), testkit.MayLeak("net/http.(*persistConn)"))
}
