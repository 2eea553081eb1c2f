package hostos

import (
	"errors"
	"io/fs"
	"reflect"
	"testing"
)

const (
	stub        = "nameserver 127.0.0.53\noptions edns0\nsearch example.org\n"
	etcFile     = "etc/resolv.conf"
	systemdFile = "run/systemd/resolve/resolv.conf"
	managerFile = "run/NetworkManager/no-stub-resolv.conf"
)

func TestUpstreams(t *testing.T) {
	const plain = "# c\nnameserver 192.0.2.53\nnameserver fd00::53\nsearch a.example b.example\n"
	for _, row := range []struct {
		name  string
		files map[string]string
		want  Resolver
	}{
		{"no files", nil, Resolver{}},
		{"plain", map[string]string{etcFile: plain}, Resolver{Servers: []string{"192.0.2.53", "fd00::53"}, Conf: plain}},
		{"no newline at the end", map[string]string{etcFile: "nameserver 192.0.2.53"},
			Resolver{Servers: []string{"192.0.2.53"}, Conf: "nameserver 192.0.2.53"}},
		{"systemd's stub", map[string]string{etcFile: stub, systemdFile: "nameserver 192.0.2.53\nsearch example.org\n"},
			Resolver{Servers: []string{"192.0.2.53"}, Conf: "nameserver 192.0.2.53\nsearch example.org\n"}},
		{"NetworkManager's stub", map[string]string{etcFile: stub, managerFile: "nameserver 192.0.2.54\n"},
			Resolver{Servers: []string{"192.0.2.54"}, Conf: "nameserver 192.0.2.54\n"}},
		{"only a stub", map[string]string{etcFile: stub}, Resolver{}},
		{"loopback beside a real one", map[string]string{etcFile: "nameserver ::1\nnameserver 127.0.0.1\nnameserver 192.0.2.53\noptions edns0\n", systemdFile: "nameserver 192.0.2.99\n"},
			Resolver{Servers: []string{"192.0.2.53"}, Conf: "nameserver 192.0.2.53\noptions edns0\n"}},
		{"mapped, unspecified and broken ones", map[string]string{etcFile: "nameserver ::ffff:127.0.0.1\nnameserver 0.0.0.0\nnameserver\nnameserver x\n"}, Resolver{}},
		{"zone", map[string]string{etcFile: "nameserver fe80::1%eth0\n"}, Resolver{Servers: []string{"fe80::1%eth0"}, Conf: "nameserver fe80::1%eth0\n"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := system{root: t.TempDir()}
			for name, text := range row.files {
				put(t, s, name, text)
			}
			got, err := s.upstreams("")
			if err != nil || !reflect.DeepEqual(got, row.want) {
				t.Errorf("got %+v, %v, want %+v", got, err, row.want)
			}
		})
	}
}

func TestUpstreamsOfNamedFile(t *testing.T) {
	s := system{root: t.TempDir()}
	put(t, s, "mine", stub)
	put(t, s, systemdFile, "nameserver 192.0.2.53\n")
	got, err := s.upstreams(s.path("mine"))
	if err != nil || got.Servers != nil || got.Conf != "" {
		t.Errorf("a named stub is followed elsewhere: %+v, %v", got, err)
	}
	if _, err := s.upstreams(s.path("missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
