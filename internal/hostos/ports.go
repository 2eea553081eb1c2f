package hostos

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// portProblems opens and closes the port; in between nobody can connect to it for long enough to notice.
func (s system) portProblems(l Listener) []Problem {
	err := tryListen(l)
	if err == nil {
		return nil
	}
	message := fmt.Sprintf("%s cannot listen on %s: %v", l.Use, l.Address, err)
	remedy := "give an address of this host"
	if errors.Is(err, unix.EADDRINUSE) {
		message = fmt.Sprintf("%s cannot listen on %s: the port is taken", l.Use, l.Address)
		remedy = "stop the process that holds it"
		if holder := s.holder(l); holder != "" {
			message += " by " + holder
			remedy = "stop it"
		}
	}
	if l.Flag != "" {
		remedy += " or choose another with " + l.Flag
	}
	return fatal(message, remedy)
}

func (l Listener) network() string {
	if l.Network == "" {
		return "tcp"
	}
	return l.Network
}

func tryListen(l Listener) error {
	if l.network() == "udp" {
		c, err := net.ListenPacket("udp", l.Address.String())
		if err == nil {
			err = c.Close()
		}
		return reason(err)
	}
	c, err := net.Listen("tcp", l.Address.String())
	if err == nil {
		err = c.Close()
	}
	return reason(err)
}

// reason takes off what net puts around a system call's error, which would say the address once more.
func reason(err error) error {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return errno
	}
	return err
}

// holder names the process that listens on the port, as "name (pid 123)", or is empty when it cannot be found.
func (s system) holder(l Listener) string {
	inodes := map[string]bool{}
	for _, version := range []string{"", "6"} {
		table, err := s.read("proc/net/" + l.network() + version)
		if err == nil {
			addListening(inodes, table, l.Address.Port())
		}
	}
	fds, _ := filepath.Glob(s.path("proc/[0-9]*/fd/*"))
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err == nil && inodes[target] {
			pid := filepath.Base(filepath.Dir(filepath.Dir(fd)))
			name, _ := s.read(filepath.Join("proc", pid, "comm"))
			return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(name), pid)
		}
	}
	return ""
}

// addListening collects the sockets bound to port from a table like /proc/net/tcp: local address in column 1, state in
// column 3 (0A is TCP's LISTEN, 07 UDP's unconnected), inode in column 9.
func addListening(inodes map[string]bool, table string, port uint16) {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 10 || f[3] != "0A" && f[3] != "07" {
			continue
		}
		_, hex, _ := strings.Cut(f[1], ":")
		if n, err := strconv.ParseUint(hex, 16, 16); err == nil && uint16(n) == port {
			inodes["socket:["+f[9]+"]"] = true
		}
	}
}
