package dial

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// host is how an address behaves.
type host struct {
	after time.Duration // 0 is never
	err   error
	late  bool // answers although nobody waits any more
}

// hosts connects to addresses that behave as they are made, and notes what is open.
type hosts struct {
	are  map[string]host
	mu   sync.Mutex
	open map[net.Conn]string
}

type conn struct {
	net.Conn
	hosts *hosts
}

func (c *conn) Close() error {
	c.hosts.mu.Lock()
	defer c.hosts.mu.Unlock()
	delete(c.hosts.open, c)
	return nil
}

func (h *hosts) connect(ctx context.Context, address string) (net.Conn, error) {
	is := h.are[address]
	never := make(chan time.Time)
	answers := (<-chan time.Time)(never)
	if is.after > 0 {
		answers = time.After(is.after)
	}
	done := ctx.Done()
	if is.late {
		done = nil
	}
	select {
	case <-answers:
	case <-done:
		return nil, ctx.Err()
	}
	if is.err != nil {
		return nil, is.err
	}
	c := &conn{hosts: h}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open[c] = address
	return c, nil
}

var errRefused = errors.New("refused")

func TestFirst(t *testing.T) {
	for name, c := range map[string]struct {
		are  map[string]host
		want string
		took time.Duration
	}{
		"the first answers":           {map[string]host{"a": {after: time.Millisecond}, "b": {after: time.Millisecond}}, "a", time.Millisecond},
		"the first says nothing":      {map[string]host{"b": {after: time.Millisecond}}, "b", Headstart + time.Millisecond},
		"the first refuses":           {map[string]host{"a": {after: time.Millisecond, err: errRefused}, "b": {after: time.Millisecond}}, "b", 2 * time.Millisecond},
		"two say nothing":             {map[string]host{"c": {after: time.Millisecond}}, "c", 2*Headstart + time.Millisecond},
		"the first is slow":           {map[string]host{"a": {after: Headstart + time.Millisecond}, "b": {after: time.Second}}, "a", Headstart + time.Millisecond},
		"the loser answers later":     {map[string]host{"a": {after: Headstart + 9*time.Millisecond, late: true}, "b": {after: time.Millisecond}}, "b", Headstart + 9*time.Millisecond},
		"one refuses beside a slow":   {map[string]host{"a": {after: Headstart + 9*time.Millisecond}, "b": {after: time.Millisecond, err: errRefused}}, "a", Headstart + 9*time.Millisecond},
		"all refuse, one after other": {map[string]host{"a": {after: 1, err: errRefused}, "b": {after: 1, err: errRefused}, "c": {after: 1, err: errRefused}}, "", 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &hosts{are: c.are, open: map[net.Conn]string{}}
				began := time.Now()
				addresses := []string{"a", "b", "c"}
				got, i, err := First(t.Context(), addresses, h.connect)
				if took := time.Since(began); took != c.took {
					t.Errorf("it took %v, want %v", took, c.took)
				}
				if c.want == "" {
					if !errors.Is(err, errRefused) || got != nil {
						t.Fatalf("connected to %s: %v", addresses[i], err)
					}
					return
				}
				if err != nil || addresses[i] != c.want || h.open[got] != c.want || len(h.open) != 1 {
					t.Errorf("connected to %s (%v), open are %v", addresses[i], err, h.open)
				}
			})
		})
	}
}

func TestFirstEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		h := &hosts{open: map[net.Conn]string{}}
		if _, _, err := First(ctx, []string{"a", "b", "c"}, h.connect); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the error is %v", err)
		}
	})
}
