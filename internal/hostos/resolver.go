package hostos

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
)

const etcResolvConf = "etc/resolv.conf"

// realResolvConfs are the files in which local stub resolvers (systemd-resolved, NetworkManager with dnsmasq) keep the
// servers that they themselves ask.
var realResolvConfs = []string{"run/systemd/resolve/resolv.conf", "run/NetworkManager/no-stub-resolv.conf"}

// Resolver is where the host resolves names.
type Resolver struct {
	// Servers are addresses without port, never loopback ones; empty when the host has no resolver.
	Servers []string
	// Conf is the file that they were read from, without the lines of other servers; empty when no file names a usable one.
	Conf string
}

// Upstreams finds the host's real resolvers. resolvConf names the file to read; empty means /etc/resolv.conf and, if
// that only leads to a stub on the host itself, the files in which the known stubs keep their own servers. Loopback
// addresses are dropped, since a pod cannot reach them and the cluster DNS could be asked by them in a circle. A missing
// file is an error only when it was named.
func Upstreams(resolvConf string) (Resolver, error) { return thisHost().upstreams(resolvConf) }

// ResolvConfs are the files that Upstreams looks at, for those who want to know of their changes.
func ResolvConfs(resolvConf string) []string {
	if resolvConf != "" {
		return []string{resolvConf}
	}
	files := []string{"/" + etcResolvConf}
	for _, f := range realResolvConfs {
		files = append(files, "/"+f)
	}
	return files
}

func (s system) upstreams(resolvConf string) (Resolver, error) {
	if resolvConf != "" {
		return readResolver(resolvConf)
	}
	for _, name := range append([]string{etcResolvConf}, realResolvConfs...) {
		r, err := readResolver(s.path(name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil || len(r.Servers) > 0 {
			return r, err
		}
	}
	return Resolver{}, nil
}

func readResolver(path string) (Resolver, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Resolver{}, fmt.Errorf("read resolvers: %w", err)
	}
	r := parseResolver(string(b))
	if len(r.Servers) == 0 {
		r.Conf = ""
	}
	return r, nil
}

// parseResolver reads what resolv.conf(5) calls name servers; all other lines go through as they are.
func parseResolver(text string) Resolver {
	var r Resolver
	var conf strings.Builder
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 0 && f[0] == "nameserver" {
			if len(f) < 2 || !usableServer(f[1]) {
				continue
			}
			r.Servers = append(r.Servers, f[1])
		}
		conf.WriteString(line)
	}
	r.Conf = conf.String()
	return r
}

func usableServer(text string) bool {
	a, err := netip.ParseAddr(text)
	return err == nil && !a.Unmap().IsLoopback() && !a.IsUnspecified()
}
