package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"
)

const (
	maxRequest  = 1 << 20          // bytes
	readTimeout = 10 * time.Second // for a whole request, which is sent at once
)

// First byte of a reply: what the endpoint exits with.
const (
	replyOK     = '0'
	replyFailed = '1'
)

// listen makes the socket under another name first, so that nobody can reach it
// before it has its mode.
func listen(path string) (*net.UnixListener, error) {
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("make the CNI socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("make the CNI socket: %w", err)
	}
	l.SetUnlinkOnClose(false) // the name would be the old one; the next start replaces it
	if err := errors.Join(os.Chmod(fresh, 0o600), os.Rename(fresh, path)); err != nil {
		return nil, errors.Join(fmt.Errorf("make the CNI socket: %w", err), l.Close())
	}
	return l, nil
}

// serve answers requests until l is closed. Each is counted in serving. When ctx
// ends, requests that still wait or are not fully read get an error.
func (n *Network) serve(ctx context.Context, l *net.UnixListener, serving *sync.WaitGroup) error {
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept on the CNI socket: %w", err)
		}
		serving.Go(func() { n.answer(ctx, c) })
	}
}

func (n *Network) answer(ctx context.Context, c *net.UnixConn) {
	defer c.Close()
	body, err := n.handle(ctx, c)
	status := byte(replyOK)
	if err != nil {
		status, body = replyFailed, asFailure(err)
	}
	var data []byte
	if body != nil {
		if data, err = json.Marshal(body); err != nil {
			n.log.Error("encode the answer to the CNI endpoint", "error", err)
			return
		}
	}
	// The runtime may be gone; it asks again, or deletes the sandbox.
	_ = c.SetWriteDeadline(time.Now().Add(readTimeout))
	if _, err := c.Write(append([]byte{status}, data...)); err != nil {
		n.log.Debug("answer the CNI endpoint", "error", err)
	}
}

func (n *Network) handle(ctx context.Context, c net.Conn) (any, error) {
	_ = c.SetReadDeadline(time.Now().Add(readTimeout))
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Now()) })
	data, err := io.ReadAll(io.LimitReader(c, maxRequest))
	stop()
	if err != nil {
		return nil, failure(codeTryLater, "read the request of the CNI endpoint: %v", err)
	}
	r, err := parseRequest(data)
	if err != nil {
		return nil, err
	}
	if err := n.waitReady(ctx, r); err != nil {
		return nil, err
	}
	began := time.Now()
	body, err := n.do(r)
	n.log.Debug("network request", "command", r.command, "sandbox", r.key.ContainerID, "took", time.Since(began), "error", err)
	return body, err
}

// waitReady blocks until the network is ready, and protects the namespace of a
// waiting pod from the clean-up that goes on meanwhile.
func (n *Network) waitReady(ctx context.Context, r request) error {
	n.pending.add(r.netns)
	defer n.pending.remove(r.netns)
	select {
	case <-n.isReady:
		return nil
	case <-ctx.Done():
		return failure(codeTryLater, "the pod network is being stopped")
	}
}

func (n *Network) do(r request) (any, error) {
	switch r.command {
	case "ADD":
		return n.add(r)
	case "DEL":
		return nil, n.del(r.key)
	case "CHECK":
		return nil, n.check(r)
	case "GC":
		return nil, n.gc(r.valid)
	default:
		return nil, nil
	}
}
