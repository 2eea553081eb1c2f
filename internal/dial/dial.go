// Package dial connects to the first of several addresses that answers.
//
// It promises that an address which says nothing holds the others up for Headstart alone, that the earlier of two which
// answer wins, and that no connection is left open but the one returned.
package dial

import (
	"context"
	"errors"
	"net"
	"time"
)

// Headstart is how long an address may take before the next one is tried beside it: after a second the kernel sends a lost
// SYN again (RFC 6298).
const Headstart = time.Second

type result struct {
	i    int
	conn net.Conn
	err  error
}

// First connects, and returns the index of the address that it is connected to. Without one, the error has those of all.
func First(ctx context.Context, addresses []string, connect func(ctx context.Context, address string) (net.Conn, error)) (net.Conn, int, error) {
	ctx, cancel := context.WithCancel(ctx)
	results := make(chan result, len(addresses))
	next, under := 0, 0
	begin := func() {
		if next == len(addresses) || ctx.Err() != nil {
			return
		}
		i := next
		next++
		under++
		go func() {
			c, err := connect(ctx, addresses[i])
			results <- result{i, c, err}
		}()
	}
	defer func() {
		cancel()
		for ; under > 0; under-- {
			if late := <-results; late.err == nil {
				_ = late.conn.Close()
			}
		}
	}()
	var errs []error
	for begin(); under > 0; {
		select {
		case r := <-results:
			under--
			if r.err == nil {
				return r.conn, r.i, nil
			}
			errs = append(errs, r.err)
			if under == 0 {
				begin()
			}
		case <-time.After(Headstart):
			begin()
		}
	}
	return nil, 0, errors.Join(errs...)
}
