package snapshot_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/clusterd/clusterd/internal/snapshot"
)

func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	order := snapshot.Order{Name: "one", Folder: "/somewhere"}
	if _, err := snapshot.Ask(t.Context(), path, order); !errors.Is(err, snapshot.ErrNoServer) {
		t.Errorf("without a server: %v", err)
	}
	want := snapshot.Info{Name: "one", Size: 7, Meta: snapshot.Meta{Created: time.Unix(1e9, 0).UTC(), Revision: 9}}
	var given snapshot.Order
	fail := errors.New("no room: make some")
	save := func(_ context.Context, o snapshot.Order) (snapshot.Info, error) {
		given = o
		if o.Name == "bad" {
			return snapshot.Info{}, fail
		}
		return want, nil
	}
	for range 2 { // the second finds the socket of the first, as after a kill
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- snapshot.Serve(ctx, path, save) }()
		var got snapshot.Info
		err := error(snapshot.ErrNoServer)
		for errors.Is(err, snapshot.ErrNoServer) {
			got, err = snapshot.Ask(t.Context(), path, order)
		}
		if err != nil || got != want || given != order {
			t.Errorf("asked for %+v, got %+v, %v", given, got, err)
		}
		if _, err := snapshot.Ask(t.Context(), path, snapshot.Order{Name: "bad"}); err == nil || err.Error() != fail.Error() {
			t.Errorf("got %v, want %v", err, fail)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if _, err := snapshot.Ask(t.Context(), path, order); !errors.Is(err, snapshot.ErrNoServer) {
			t.Errorf("after the end: %v", err)
		}
	}
}
