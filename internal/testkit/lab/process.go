package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// enterTimeout is how long a command may take to have entered its node.
const enterTimeout = 10 * time.Second

// Process is a command that runs in a node.
type Process struct {
	cmd     *exec.Cmd
	process *os.Process // the command itself, seen from outside the node
	done    chan struct{}
	err     error
}

// Start runs a command in the node in the background, with both its streams written to out (an *os.File is handed over
// as it is). extra is added to the environment, as KEY=VALUE.
func (n *Node) Start(out io.Writer, extra []string, args ...string) (*Process, error) {
	c := n.Command(context.Background(), args...)
	c.Env = append(c.Env, extra...)
	c.Stdout, c.Stderr = out, out
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	p := &Process{cmd: c, done: make(chan struct{})}
	go func() {
		p.err = c.Wait()
		close(p.done)
	}()
	return p, p.find()
}

// find waits for the child that nsenter makes inside the node: a signal to nsenter itself would not reach it.
func (p *Process) find() error {
	deadline := time.After(enterTimeout)
	for {
		if pid := entered(p.cmd.Process.Pid); pid != 0 {
			var err error
			p.process, err = os.FindProcess(pid)
			return err
		}
		select {
		case <-p.done:
			return nil // it has already ended: Wait says how
		case <-deadline:
			_ = p.cmd.Process.Kill()
			return fmt.Errorf("process %d did not enter its node in %s", p.cmd.Process.Pid, enterTimeout)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// entered returns the child of the process once the process is nsenter, else 0.
func entered(pid int) int {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	comm, err := os.ReadFile(filepath.Join(dir, "comm"))
	if err != nil || strings.TrimSpace(string(comm)) != "nsenter" {
		return 0
	}
	children, err := os.ReadFile(filepath.Join(dir, "task", strconv.Itoa(pid), "children"))
	if err != nil {
		return 0
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(children)))
	if err != nil {
		return 0
	}
	return child
}

// Signal sends a signal to the command.
func (p *Process) Signal(s os.Signal) error {
	if p.process == nil {
		return os.ErrProcessDone
	}
	return p.process.Signal(s)
}

// PID is the command's process number outside the node, 0 when it ended before it was seen.
func (p *Process) PID() int {
	if p.process == nil {
		return 0
	}
	return p.process.Pid
}

// Done is closed when the command has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err is how a command ended that Done says has ended: nil, or an *exec.ExitError.
func (p *Process) Err() error { return p.err }

// Wait returns how the command ended, or an error that wraps os.ErrDeadlineExceeded when it has not by then.
func (p *Process) Wait(timeout time.Duration) error {
	select {
	case <-p.done:
		return p.err
	case <-time.After(timeout):
		return fmt.Errorf("wait %s for process %d to end: %w", timeout, p.PID(), os.ErrDeadlineExceeded)
	}
}

// Kill ends the command without a warning and waits for that.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	if err := p.Wait(enterTimeout); errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}
