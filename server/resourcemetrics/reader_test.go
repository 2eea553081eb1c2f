package resourcemetrics

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// kubelets answer by the name of their node.
type kubelets map[string]http.RoundTripper

func (k kubelets) find(_ context.Context, name string) (Kubelet, error) {
	t, ok := k[name]
	if !ok {
		return Kubelet{}, errors.New("no such node")
	}
	return Kubelet{URL: url.URL{Scheme: "https", Host: "[2001:db8::1]:10250"}, Transport: t}, nil
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// says answers with a status and a body, and counts.
func says(asked *atomic.Int32, status int, body string) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		asked.Add(1)
		if r.URL.String() != "https://[2001:db8::1]:10250/stats/summary?only_cpu_and_memory=true" {
			status = http.StatusNotFound
		}
		return &http.Response{StatusCode: status, Status: http.StatusText(status), Body: io.NopCloser(strings.NewReader(body))}, nil
	})
}

// hang answers nothing until the request ends.
func hang(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

const summary = `{
	"node": {
		"nodeName": "good", "startTime": "2026-01-01T00:00:00Z",
		"cpu": {"time": "2026-01-02T00:00:00Z", "usageNanoCores": 250000000, "usageCoreNanoSeconds": 900000000000},
		"memory": {"time": "2026-01-02T00:00:00Z", "workingSetBytes": 1048576}
	},
	"pods": []
}`

func newReader(k kubelets) *reader {
	return &reader{find: k.find, log: slog.New(slog.DiscardHandler), nodes: map[string]*node{}}
}

// TestReadSomeNodes has an answer of those that answer, no later than the patience for the others.
func TestReadSomeNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		r := newReader(kubelets{
			"good":      says(&asked, http.StatusOK, summary),
			"hangs":     roundTrip(hang),
			"refuses":   says(&asked, http.StatusForbidden, "no"),
			"nonsense":  says(&asked, http.StatusOK, "<html>"),
			"cut-short": says(&asked, http.StatusOK, summary[:50]),
		})
		began := time.Now()
		all := r.read(t.Context(), map[string]bool{"good": true, "hangs": true, "refuses": true, "nonsense": true, "cut-short": true, "left": true})
		if took := time.Since(began); took > patience {
			t.Errorf("it took %s", took)
		}
		if len(all) != 1 || all["good"] == nil {
			t.Fatalf("usages of %v, want good only", all)
		}
		used := all["good"].node.used
		if cpu, memory := used.Cpu().String(), used.Memory().String(); cpu != "250m" || memory != "1Mi" {
			t.Errorf("node uses %s and %s", cpu, memory)
		}
	})
}

// TestAskOnce is for many that ask within a moment, one of whom goes away at once.
func TestAskOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		r := newReader(kubelets{"good": says(&asked, http.StatusOK, summary)})
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		want := map[string]bool{"good": true}
		for range 10 {
			go r.read(gone, want)
		}
		for range 10 {
			if r.read(t.Context(), want)["good"] == nil {
				t.Fatal("no usage")
			}
		}
		synctest.Wait()
		if n := asked.Load(); n != 1 {
			t.Errorf("the kubelet was asked %d times", n)
		}
		time.Sleep(fresh)
		r.read(t.Context(), want)
		if n := asked.Load(); n != 2 {
			t.Errorf("later on the kubelet was asked %d times in all, want 2", n)
		}
		time.Sleep(forgotten + time.Second)
		r.read(t.Context(), map[string]bool{"other": true})
		if len(r.nodes) != 1 {
			t.Errorf("%d nodes are remembered, want only the other", len(r.nodes))
		}
	})
}
