// Command cni is the CNI endpoint: the runtime executes it for every pod that
// comes or goes, and it hands the call to the agent, which does the work.
//
// It promises to add nothing of its own but waiting: what the agent answers is
// what the runtime gets. It is built from syscall and os alone, since its start
// is paid twice a pod, and a build with package net or encoding/json has several
// times the size. Everything about the call is in agent/network.
//
// Request: the CNI_ variables of the environment, each ended by NUL, one NUL
// more, standard input as it is, end of stream. Reply: one byte, '0' or '1', for
// the exit status, then what goes to standard output.
package main

import (
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"time"
)

// connectTimeout is how long the agent may take to come back when it is being
// restarted. The runtime's own deadline ends the process before, if it is shorter.
const (
	connectTimeout = 10 * time.Second
	connectPause   = 50 * time.Millisecond
)

const versions = `{"cniVersion":"1.0.0","supportedVersions":["1.0.0","1.1.0"]}`

func main() {
	out, failed, err := run()
	if err != nil {
		out, failed = errorResult(err), true
	}
	os.Stdout.Write(out)
	if failed {
		os.Exit(1)
	}
}

// run returns what to print and whether that is an error of the agent's.
func run() (out []byte, failed bool, err error) {
	conf, err := io.ReadAll(os.Stdin)
	if err != nil {
		return nil, false, errors.New("read the network configuration: " + err.Error())
	}
	if os.Getenv("CNI_COMMAND") == "VERSION" {
		return []byte(versions), false, nil
	}
	path, err := socketPath(conf)
	if err != nil {
		return nil, false, err
	}
	c, err := connect(path)
	if err != nil {
		return nil, false, errors.New("reach the agent at " + path + ": " + err.Error())
	}
	defer c.Close()
	reply, err := exchange(c, request(conf))
	if err != nil {
		return nil, false, errors.New("ask the agent at " + path + ": " + err.Error())
	}
	return reply[1:], reply[0] != '0', nil
}

func request(conf []byte) []byte {
	var b []byte
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, "CNI_") {
			b = append(append(b, kv...), 0)
		}
	}
	return append(append(b, 0), conf...)
}

// connect waits for an agent that is not there yet.
func connect(path string) (*os.File, error) {
	for began := time.Now(); ; time.Sleep(connectPause) {
		f, err := dial(path)
		absent := errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED)
		if !absent || time.Since(began) > connectTimeout {
			return f, err
		}
	}
}

func dial(path string) (*os.File, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Connect(fd, &syscall.SockaddrUnix{Name: path})
		if err == nil {
			return os.NewFile(uintptr(fd), path), nil
		}
		if err != syscall.EINTR {
			syscall.Close(fd)
			return nil, err
		}
	}
}

func exchange(c *os.File, request []byte) (reply []byte, err error) {
	if _, err := c.Write(request); err != nil {
		return nil, err
	}
	if err := syscall.Shutdown(int(c.Fd()), syscall.SHUT_WR); err != nil {
		return nil, err
	}
	if reply, err = io.ReadAll(c); err != nil {
		return nil, err
	}
	if len(reply) == 0 {
		return nil, errors.New("it went away without an answer")
	}
	return reply, nil
}

// errorResult is an error in CNI's form, code 11: try again later.
func errorResult(err error) []byte {
	return []byte(`{"cniVersion":"1.0.0","code":11,"msg":` + quote(err.Error()) + `}`)
}
