package inproc_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/clusterd/clusterd/internal/inproc"
)

// client returns a client of h that acts as system:kube-scheduler.
func client(h http.HandlerFunc) *http.Client {
	var t inproc.Transport
	t.SetHandler(h)
	return &http.Client{Transport: t.Config(inproc.User("system:kube-scheduler"), "test").Transport}
}

func request(ctx context.Context, t *testing.T, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://in-process/api?x=1", body)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRequestReachesTheHandler(t *testing.T) {
	c := client(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Uri", r.RequestURI)
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte("got " + string(b)))
	})
	res, err := c.Do(request(t.Context(), t, strings.NewReader("hello")))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	if err != nil || string(b) != "got hello" || res.StatusCode != http.StatusCreated || res.Header.Get("X-Uri") != "/api?x=1" {
		t.Fatalf("body %q, status %d, uri %q, error %v", b, res.StatusCode, res.Header.Get("X-Uri"), err)
	}
}

func TestIdentity(t *testing.T) {
	refuse := authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return nil, false, errors.New("asked the next authenticator")
	})
	auth := inproc.Authenticator(refuse)
	c := client(func(w http.ResponseWriter, r *http.Request) {
		res, ok, err := auth.AuthenticateRequest(r)
		if !ok || err != nil {
			t.Errorf("not authenticated: %v", err)
			return
		}
		_, _ = io.WriteString(w, res.User.GetName()+" "+strings.Join(res.User.GetGroups(), ","))
	})
	res, err := c.Do(request(t.Context(), t, nil))
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(res.Body); string(b) != "system:kube-scheduler system:authenticated" {
		t.Fatalf("acts as %q", b)
	}
	if _, ok, err := auth.AuthenticateRequest(request(t.Context(), t, nil)); ok || err == nil {
		t.Fatal("a request without the transport's identity was accepted")
	}
}

func TestCallersContextValuesStayOut(t *testing.T) {
	type key struct{}
	c := client(func(_ http.ResponseWriter, r *http.Request) {
		if r.Context().Value(key{}) != nil {
			t.Error("the handler sees the caller's values")
		}
	})
	if _, err := c.Do(request(context.WithValue(t.Context(), key{}, "leak"), t, nil)); err != nil {
		t.Fatal(err)
	}
}

func TestStreamAndCancel(t *testing.T) {
	ended := make(chan struct{})
	c := client(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		_, _ = io.WriteString(w, "event")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	res, err := c.Do(request(t.Context(), t, nil))
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(res.Body, b); err != nil || string(b) != "event" {
		t.Fatalf("read %q: %v", b, err)
	}
	_ = res.Body.Close()
	await(t, ended)
}

func TestCancelInTheMiddleIsNoEnd(t *testing.T) {
	c := client(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "half of a")
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	res, err := c.Do(request(ctx, t, nil))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if b, err := io.ReadAll(res.Body); !errors.Is(err, context.Canceled) {
		t.Fatalf("read %q, error %v", b, err)
	}
}

func TestCancelBeforeHeaders(t *testing.T) {
	ended := make(chan struct{})
	c := client(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done(); close(ended) })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := c.Do(request(ctx, t, nil)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error is %v", err)
	}
	await(t, ended)
}

func TestSlowReaderHoldsTheWriter(t *testing.T) {
	wrote := make(chan int, 100)
	c := client(func(w http.ResponseWriter, _ *http.Request) {
		for i := range 100 {
			if _, err := w.Write(make([]byte, 1<<19)); err != nil {
				return
			}
			wrote <- i
		}
	})
	res, err := c.Do(request(t.Context(), t, nil))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, res.Body); err != nil || n != 100<<19 {
		t.Fatalf("read %d bytes: %v", n, err)
	}
}

func TestAbortedHandler(t *testing.T) {
	c := client(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "part")
		panic(http.ErrAbortHandler)
	})
	res, err := c.Do(request(t.Context(), t, nil))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(res.Body); !errors.Is(err, io.ErrUnexpectedEOF) || string(b) != "part" {
		t.Fatalf("read %q, error %v", b, err)
	}
}

func TestBeforeTheHandlerIsSet(t *testing.T) {
	var tr inproc.Transport
	c := &http.Client{Transport: tr.Config(inproc.Node("a"), "test").Transport}
	if _, err := c.Do(request(t.Context(), t, nil)); !errors.Is(err, inproc.ErrNotServing) {
		t.Fatalf("error is %v", err)
	}
}

func await(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(30 * time.Second):
		t.Fatal("the handler did not end")
	}
}
