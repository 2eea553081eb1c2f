package datastore

import (
	"context"
	"net"
	"sync"
)

// pipe is a net.Listener whose connections never leave the process. They are
// unbuffered: with one connection for each resource, buffers would cost megabytes.
type pipe struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

var _ net.Listener = (*pipe)(nil)

func newPipe() *pipe {
	return &pipe{conns: make(chan net.Conn), done: make(chan struct{})}
}

// dial returns the client's end as soon as the server has taken the other one.
func (p *pipe) dial(ctx context.Context) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept waits for the next dial.
func (p *pipe) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// Close ends Accept and every waiting dial. Open connections stay.
func (p *pipe) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

// Addr names the pipe; nothing can be reached by it.
func (p *pipe) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "datastore" }
