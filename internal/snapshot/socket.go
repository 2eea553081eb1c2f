package snapshot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"
)

// Order is what a running server is asked for: a snapshot of that name in a folder.
type Order struct {
	Name   string `json:"name"`
	Folder Folder `json:"folder"`
}

// Serve does orders that come by the socket at path, one at a time, until ctx ends. The socket's directory decides who can
// reach it: it must be root's alone, since an order names a place to write secrets to. There is no network, certificate or
// permission involved, so that a snapshot can also be saved while the API server answers nobody.
func Serve(ctx context.Context, path string, save func(context.Context, Order) (Info, error)) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove old socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("listen for orders of snapshots: %w", err)
	}
	s := &http.Server{
		Handler:           handler(save),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: 10 * time.Second,
	}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(l); ctx.Err() == nil {
		return fmt.Errorf("serve orders of snapshots: %w", err)
	}
	return nil
}

func handler(save func(context.Context, Order) (Info, error)) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /snapshots", func(w http.ResponseWriter, r *http.Request) {
		var o Order
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxMeta)).Decode(&o); err != nil {
			http.Error(w, "read order: "+err.Error(), http.StatusBadRequest)
			return
		}
		made, err := save(r.Context(), o)
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(made) // who has asked is gone if this fails
	})
	return mux
}

// ErrNoServer says that no server listens.
var ErrNoServer = errors.New("no server runs")

// Ask gives an order to the server that listens at path and waits until it is done. The error is ErrNoServer when there is
// none.
func Ask(ctx context.Context, path string, o Order) (Info, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return Info{}, err
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://clusterd/snapshots", bytes.NewReader(body))
	if err != nil {
		return Info{}, err
	}
	response, err := transport.RoundTrip(request)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return Info{}, ErrNoServer
	case err != nil:
		return Info{}, fmt.Errorf("ask the server: %w", err)
	}
	defer response.Body.Close()
	return answer(response)
}

func answer(response *http.Response) (Info, error) {
	if response.StatusCode != http.StatusOK {
		text, err := io.ReadAll(io.LimitReader(response.Body, maxMeta))
		if err != nil {
			return Info{}, fmt.Errorf("read the server's answer: %w", err)
		}
		return Info{}, errors.New(strings.TrimSpace(string(text)))
	}
	var made Info
	if err := json.NewDecoder(response.Body).Decode(&made); err != nil {
		return Info{}, fmt.Errorf("read the server's answer: %w", err)
	}
	return made, nil
}
