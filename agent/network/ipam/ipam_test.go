package ipam_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/clusterd/clusterd/agent/network/ipam"
)

func prefixes(text ...string) (out []netip.Prefix) {
	for _, s := range text {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func open(t *testing.T, dir string, cidrs ...string) (*ipam.Ledger, []ipam.Key) {
	t.Helper()
	l := ipam.New(dir)
	damaged, err := l.Load()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Use(prefixes(cidrs...)); err != nil {
		t.Fatal(err)
	}
	return l, damaged
}

func key(id string) ipam.Key { return ipam.Key{ContainerID: id, IfName: "eth0"} }

func allocate(t *testing.T, l *ipam.Ledger, id string) string {
	t.Helper()
	a, err := l.Allocate(ipam.Allocation{Key: key(id), Created: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(a.Addresses)
}

func TestUse(t *testing.T) {
	for _, c := range []struct {
		name  string
		cidrs []string
		ok    bool
		want  string
	}{
		{"IPv4", []string{"10.42.7.0/24"}, true, "[10.42.7.1]"},
		{"not masked", []string{"10.42.7.9/24"}, true, "[10.42.7.1]"},
		{"IPv6", []string{"fd42::/64"}, true, "[fd42::1]"},
		{"dual-stack", []string{"fd42::/64", "10.42.7.0/24"}, true, "[fd42::1 10.42.7.1]"},
		{"none", nil, false, ""},
		{"twice the same family", []string{"10.42.7.0/24", "10.42.8.0/24"}, false, ""},
		{"three", []string{"10.42.7.0/24", "fd42::/64", "fd43::/64"}, false, ""},
		{"too small", []string{"10.42.7.0/31"}, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := ipam.New(t.TempDir())
			if err := l.Use(prefixes(c.cidrs...)); (err == nil) != c.ok {
				t.Fatalf("error %v, want ok %v", err, c.ok)
			}
			if got := fmt.Sprint(l.Gateways()); c.ok && got != c.want {
				t.Errorf("gateways %s, want %s", got, c.want)
			}
		})
	}
}

func TestEveryAddressOnceThenFull(t *testing.T) {
	l, _ := open(t, t.TempDir(), "10.42.7.0/29")
	for i, want := range []string{"2", "3", "4", "5", "6"} { // not .0, .1 and .7
		if got := allocate(t, l, fmt.Sprint("p", i)); got != "[10.42.7."+want+"/29]" {
			t.Errorf("address %d is %s, want .%s", i, got, want)
		}
	}
	if _, err := l.Allocate(ipam.Allocation{Key: key("more")}); !errors.Is(err, ipam.ErrFull) {
		t.Fatalf("error %v, want ErrFull", err)
	}
	if err := l.Release(key("p3")); err != nil {
		t.Fatal(err)
	}
	if got := allocate(t, l, "again"); got != "[10.42.7.5/29]" {
		t.Errorf("the only free address is .5, got %s", got)
	}
}

func TestFullFamilyHoldsNothingOfTheOther(t *testing.T) {
	dir := t.TempDir()
	l, _ := open(t, dir, "10.42.7.0/30", "fd42::/64") // room for one pod
	allocate(t, l, "a")
	if _, err := l.Allocate(ipam.Allocation{Key: key("b")}); !errors.Is(err, ipam.ErrFull) {
		t.Fatalf("error %v, want ErrFull", err)
	}
	if _, is := l.Get(key("b")); is || len(l.All()) != 1 {
		t.Error("the failed allocation holds something")
	}
	if _, err := os.Stat(filepath.Join(dir, "b@eth0")); err == nil {
		t.Error("the failed allocation left a record")
	}
}

func TestRoundRobinSurvivesRestart(t *testing.T) {
	dir := t.TempDir()
	l, _ := open(t, dir, "10.42.7.0/24")
	allocate(t, l, "a")
	if err := l.Release(key("a")); err != nil {
		t.Fatal(err)
	}
	l, _ = open(t, dir, "10.42.7.0/24")
	if got := allocate(t, l, "b"); got != "[10.42.7.3/24]" {
		t.Errorf("after the restart got %s, want the address behind the last one", got)
	}
}

func TestLoad(t *testing.T) {
	for _, c := range []struct {
		name, content string
		damaged       bool
	}{
		{"whole", "", false},
		{"empty", "\n", true},
		{"torn", `{"containerID":"a","ifName":"eth0","addr`, true},
		{"of another sandbox", `{"containerID":"x","ifName":"eth0","addresses":["10.42.7.2/24"]}`, true},
		{"without address", `{"containerID":"a","ifName":"eth0"}`, true},
		{"zero address", `{"containerID":"a","ifName":"eth0","addresses":[""]}`, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			l, _ := open(t, dir, "10.42.7.0/24")
			want := allocate(t, l, "a")
			if c.content != "" {
				write(t, filepath.Join(dir, "a@eth0"), c.content)
			}
			write(t, filepath.Join(dir, ".a@eth0.123"), "rest of a killed write")
			l, damaged := open(t, dir, "10.42.7.0/24")
			if got := len(damaged) == 1 && damaged[0] == key("a"); got != c.damaged {
				t.Errorf("damaged %v, want %v", damaged, c.damaged)
			}
			if a, is := l.Get(key("a")); is == c.damaged || is && fmt.Sprint(a.Addresses) != want {
				t.Errorf("loaded %v %v, want %s", is, a.Addresses, want)
			}
			if _, err := os.Stat(filepath.Join(dir, ".a@eth0.123")); err == nil {
				t.Error("the rest of a killed write is still there")
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAdopt(t *testing.T) {
	dir := t.TempDir()
	l, _ := open(t, dir, "10.42.7.0/24")
	allocate(t, l, "a")
	if err := l.Adopt(ipam.Allocation{Key: key("b"), Addresses: prefixes("10.42.7.2/24")}); err == nil {
		t.Error("adopted an address of another sandbox")
	}
	if err := l.Adopt(ipam.Allocation{Key: key("b"), Addresses: prefixes("10.42.7.3/24")}); err != nil {
		t.Fatal(err)
	}
	if got := allocate(t, l, "c"); got != "[10.42.7.4/24]" {
		t.Errorf("after adopting .3 got %s", got)
	}
	l, _ = open(t, dir, "10.42.7.0/24")
	if len(l.All()) != 3 {
		t.Errorf("after a restart: %v", l.All())
	}
}

func TestAllocateTwiceAndUnwritable(t *testing.T) {
	dir := t.TempDir()
	l, _ := open(t, dir, "10.42.7.0/24")
	allocate(t, l, "a")
	if _, err := l.Allocate(ipam.Allocation{Key: key("a")}); err == nil {
		t.Error("second allocation for the same key")
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Allocate(ipam.Allocation{Key: key("b")}); err == nil {
		t.Error("allocation without a record on disk")
	}
	if _, is := l.Get(key("b")); is {
		t.Error("the failed allocation holds something")
	}
}

func TestConcurrentAllocations(t *testing.T) {
	l, _ := open(t, t.TempDir(), "10.42.0.0/22", "fd42::/64")
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			if _, err := l.Allocate(ipam.Allocation{Key: key(fmt.Sprint("p", i))}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	seen := map[netip.Prefix]bool{}
	for _, a := range l.All() {
		for _, p := range a.Addresses {
			if seen[p] {
				t.Errorf("%s twice", p)
			}
			seen[p] = true
		}
	}
	if len(seen) != 400 {
		t.Errorf("%d addresses, want 400", len(seen))
	}
}
