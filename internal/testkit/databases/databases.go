// Package databases runs real database servers for tests: PostgreSQL and MariaDB from Debian's packages, etcd and NATS
// from their Go modules. They run without privileges, on a directory of the test's own, and end with the test.
//
// Where something is missing that scripts/packages installs, the test fails: a test that is left out proves nothing.
package databases

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Machine is where a server runs: this one, or a node of a lab.
type Machine interface {
	// Run runs a command to its end, and returns what it printed.
	Run(args ...string) (string, error)
	// Start runs one in the background, its streams to a file.
	Start(log string, args ...string) (Process, error)
	// Path is where this process finds a file of the machine.
	Path(inside string) string
	// Dial connects to the machine's addresses.
	Dial(address string) (net.Conn, error)
}

// Addressed is a Machine that others reach. Servers on it listen at its address instead of 127.0.0.1.
type Addressed interface {
	Machine
	Address() string
}

// host is where servers on m listen.
func host(m Machine) string {
	if a, ok := m.(Addressed); ok {
		return a.Address()
	}
	return "127.0.0.1"
}

// Process is a running server.
type Process interface {
	Signal(os.Signal) error
	Kill() error
	Wait(timeout time.Duration) error
	// Done is closed when it has ended.
	Done() <-chan struct{}
}

// startTimeout is for a server to answer, stopTimeout for it to end, both for a busy machine.
const (
	startTimeout = time.Minute
	stopTimeout  = time.Minute
)

// Server is a database server that can be stopped and started again.
type Server struct {
	// Endpoint is what clusterd is given.
	Endpoint string

	machine Machine
	address string
	log     string
	command []string
	end     os.Signal // for an orderly end that does not wait for clients
	process Process
}

// Start starts the server, again if it was stopped, and waits until it takes connections. One that ends at once is started
// once more: PostgreSQL refuses to while processes of one that was killed are still ending.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	s.launch(t)
	for deadline := time.Now().Add(startTimeout); ; {
		conn, err := s.machine.Dial(s.address)
		if err == nil {
			conn.Close()
			return
		}
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(s.machine.Path(s.log))
			t.Fatalf("%s does not answer: %v\n%s", s.command[0], err, log)
		}
		select {
		case <-s.process.Done():
			time.Sleep(500 * time.Millisecond)
			s.launch(t)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (s *Server) launch(t testing.TB) {
	t.Helper()
	var err error
	if s.process, err = s.machine.Start(s.log, s.command...); err != nil {
		t.Fatal(err)
	}
}

// Stop ends the server as an administrator would.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	if err := s.process.Signal(s.end); err != nil {
		t.Fatal(err)
	}
	_ = s.process.Wait(stopTimeout) // its exit status says little
}

// Kill ends the server as a power cut would, connections included.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	if err := s.process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = s.process.Wait(stopTimeout)
}

// local is the machine of the test itself.
type local struct{}

func (local) Path(inside string) string { return inside }

func (local) Dial(address string) (net.Conn, error) {
	return net.DialTimeout("tcp", address, time.Second)
}

func (local) Run(args ...string) (string, error) {
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", args[0], err, out)
	}
	return string(out), nil
}

func (local) Start(log string, args ...string) (Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	c := exec.Command(args[0], args[1:]...)
	c.Stdout, c.Stderr = out, out
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		return nil, err
	}
	p := &process{Process: c.Process, done: make(chan struct{})}
	go func() {
		p.err = c.Wait()
		close(p.done)
	}()
	return p, nil
}

type process struct {
	*os.Process
	done chan struct{}
	err  error
}

// Kill ends the process with those that it has started, as a power cut would.
func (p *process) Kill() error { return syscall.Kill(-p.Pid, syscall.SIGKILL) }

func (p *process) Done() <-chan struct{} { return p.done }

func (p *process) Wait(timeout time.Duration) error {
	select {
	case <-p.done:
		return p.err
	case <-time.After(timeout):
		return fmt.Errorf("process %d has not ended after %s", p.Pid, timeout)
	}
}

// Here is the machine that the test runs on.
func Here() Machine { return local{} }

// folders counts them, for their names.
var folders atomic.Int64

// folder makes a directory for a server on m, which the unprivileged user owns.
func folder(t testing.TB, m Machine, name string) string {
	t.Helper()
	dir := filepath.Join("/tmp", fmt.Sprintf("clusterd-%s-%d-%d", name, os.Getpid(), folders.Add(1)))
	if err := os.MkdirAll(m.Path(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(m.Path(dir), unprivileged, unprivileged); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(m.Path(dir)); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// unprivileged is the user and group nobody, as which the servers run: some refuse to be root.
const unprivileged = 65534

func drop(args ...string) []string {
	return append([]string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"}, args...)
}

// begin starts a server that ends with the test.
func (s *Server) begin(t testing.TB) *Server {
	t.Helper()
	s.Start(t)
	t.Cleanup(func() {
		_ = s.process.Kill() // it may have ended
		_ = s.process.Wait(stopTimeout)
	})
	return s
}

// port is one that nothing listens on, when none is given.
func port(t testing.TB, given int) int {
	t.Helper()
	if given != 0 {
		return given
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func find(t testing.TB, packet string, patterns ...string) string {
	t.Helper()
	for _, pattern := range patterns {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found[len(found)-1]
		}
	}
	t.Fatalf("%s is missing: scripts/packages test installs the Debian package %s", patterns[0], packet)
	return ""
}

// copyFile puts a program where the machine can run it.
func copyFile(t testing.TB, from, to string) {
	t.Helper()
	source, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(target, source); err != nil {
		t.Fatal(err)
	}
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
}
