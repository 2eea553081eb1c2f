// Package tunnel is the connection by which servers reach a node that they have no way to: the node makes it, to the
// servers' own port, and the server opens streams in it, each to an address that the node can reach.
//
// It promises that a silent loss of the connection (packets that vanish, without a reset) is noticed at both ends within
// Silence, without a message and without waking an idle process: the kernel does it.
//
// Why yamux and not github.com/rancher/remotedialer: that one notices a loss after 60 seconds, which cannot be changed,
// says that a connection is made before it is, wakes both ends every 5 seconds, and writes to a logger of its own. Why not
// Konnectivity's protocol: it is gRPC, which wants a port and an agent process of its own.
package tunnel

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"
)

const (
	// Path is where a node makes its tunnel, by a request to upgrade to Protocol as the node's user.
	Path = "/clusterd/v1/tunnel"
	// Protocol is what the connection becomes. A stream in it begins with a line from the server, the address to connect
	// to, and one from the node, which is empty when it is connected and else says why not.
	Protocol = "clusterd-tunnel/1"

	// Silence is after how long without a sign of life a connection is given up.
	Silence = 10 * time.Second

	// openTimeout bounds the opening of a stream, with the connection at its end.
	openTimeout = 10 * time.Second
	// maxLine bounds the first lines of a stream, in bytes.
	maxLine = 512
)

// Buffered is a connection of which something was read ahead.
func Buffered(c net.Conn, ahead *bufio.Reader) net.Conn { return buffered{c, ahead} }

type buffered struct {
	net.Conn
	ahead *bufio.Reader
}

func (b buffered) Read(p []byte) (int, error) { return b.ahead.Read(p) }

// NetConn is the connection below.
func (b buffered) NetConn() net.Conn { return b.Conn }

// Watch makes the kernel give a TCP connection up after Silence, whether data are under way or not.
func Watch(c net.Conn) error {
	for {
		inner, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		c = inner.NetConn()
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return fmt.Errorf("watch over the tunnel: it is no TCP connection but %T", c)
	}
	// The first probe after 4 seconds of silence, then every 2: the third that is not answered is the end.
	if err := tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 4 * time.Second, Interval: 2 * time.Second, Count: 3}); err != nil {
		return fmt.Errorf("watch over the tunnel: %w", err)
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch over the tunnel: %w", err)
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(Silence.Milliseconds()))
	})
	if err := errors.Join(err, set); err != nil {
		return fmt.Errorf("watch over the tunnel: %w", err)
	}
	return nil
}

func config() *yamux.Config {
	c := yamux.DefaultConfig()
	c.EnableKeepAlive = false // see Watch
	c.ConnectionWriteTimeout = Silence
	c.StreamOpenTimeout = openTimeout
	c.StreamCloseTimeout = openTimeout // a server that has hung up does not take what the node still sends
	c.LogOutput, c.Logger = nil, log.New(io.Discard, "", 0)
	return c
}

// Server is the server's end. It opens streams.
type Server struct{ session *yamux.Session }

// NewServer takes over a connection that was upgraded.
func NewServer(c net.Conn) (*Server, error) {
	if err := Watch(c); err != nil {
		return nil, err
	}
	s, err := yamux.Client(c, config())
	if err != nil {
		return nil, fmt.Errorf("begin the tunnel: %w", err)
	}
	return &Server{session: s}, nil
}

// Done is closed when the tunnel is.
func (s *Server) Done() <-chan struct{} { return s.session.CloseChan() }

// Close ends the tunnel and all its streams.
func (s *Server) Close() error { return s.session.Close() }

// Open connects to an address by way of the node.
func (s *Server) Open(address string) (net.Conn, error) {
	stream, err := s.session.OpenStream()
	if err != nil {
		return nil, fmt.Errorf("open a stream in the tunnel: %w", err)
	}
	if err := ask(stream, address); err != nil {
		_ = stream.Close()
		return nil, fmt.Errorf("connect to %s through the tunnel: %w", address, err)
	}
	return stream, nil
}

func ask(stream net.Conn, address string) error {
	if err := stream.SetDeadline(time.Now().Add(openTimeout)); err != nil {
		return err
	}
	if _, err := io.WriteString(stream, address+"\n"); err != nil {
		return err
	}
	answer, err := line(stream)
	if err != nil {
		return err
	}
	if answer != "" {
		return errors.New(answer)
	}
	return stream.SetDeadline(time.Time{})
}

// line reads to the end of a line and not further.
func line(r io.Reader) (string, error) {
	var text strings.Builder
	one := make([]byte, 1)
	for text.Len() < maxLine {
		if _, err := io.ReadFull(r, one); err != nil {
			return "", err
		}
		if one[0] == '\n' {
			return text.String(), nil
		}
		text.WriteByte(one[0])
	}
	return "", errors.New("its first line is too long")
}

// Serve is the node's end: it makes the connections that the server asks for with dial, until the tunnel ends.
func Serve(c net.Conn, dial func(address string) (net.Conn, error)) error {
	if err := Watch(c); err != nil {
		return err
	}
	s, err := yamux.Server(c, config())
	if err != nil {
		return fmt.Errorf("begin the tunnel: %w", err)
	}
	defer s.Close()
	for {
		stream, err := s.AcceptStream()
		if err != nil {
			return fmt.Errorf("the tunnel has ended: %w", err)
		}
		go answer(stream, dial)
	}
}

func answer(stream net.Conn, dial func(string) (net.Conn, error)) {
	defer stream.Close()
	if stream.SetReadDeadline(time.Now().Add(openTimeout)) != nil {
		return
	}
	address, err := line(stream)
	if err != nil {
		return
	}
	target, err := dial(address)
	if err != nil {
		text := strings.ReplaceAll(err.Error(), "\n", " ")
		_, _ = io.WriteString(stream, text[:min(len(text), maxLine-2)]+"\n")
		return
	}
	defer target.Close()
	if _, err := io.WriteString(stream, "\n"); err != nil || stream.SetReadDeadline(time.Time{}) != nil {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(target, bufio.NewReader(stream))
		if half, ok := target.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}()
	_, _ = io.Copy(stream, target)
	_ = stream.Close() // only this direction: what the server still sends arrives
	<-done
}
