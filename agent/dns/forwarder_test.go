package dns

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/miekg/dns"
)

func TestUsable(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("10.42.0.1")}
	services := []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16")}
	for _, row := range []struct {
		name     string
		in, want []string
	}{
		{"none", nil, nil},
		{"port is added", []string{"192.0.2.1", "2001:db8::1"}, []string{"192.0.2.1:53", "[2001:db8::1]:53"}},
		{"port is kept", []string{"192.0.2.1:5353"}, []string{"192.0.2.1:5353"}},
		{"zone is kept", []string{"fe80::1%eth0"}, []string{"[fe80::1%eth0]:53"}},
		{"stub of the host", []string{"127.0.0.53", "::1", "192.0.2.1"}, []string{"192.0.2.1:53"}},
		{"itself", []string{"10.42.0.1", "10.43.0.10"}, nil},
		{"itself, mapped", []string{"::ffff:10.42.0.1"}, nil},
		{"unspecified", []string{"0.0.0.0", "::"}, nil},
		{"no address", []string{"resolver.example.org", ""}, nil},
		{"twice", []string{"192.0.2.1", "192.0.2.1:53"}, []string{"192.0.2.1:53"}},
		{"order", []string{"192.0.2.9", "192.0.2.1"}, []string{"192.0.2.9:53", "192.0.2.1:53"}},
	} {
		if got := usable(row.in, own, services); !slices.Equal(got, row.want) {
			t.Errorf("%s: got %q, want %q", row.name, got, row.want)
		}
	}
}

func TestStanza(t *testing.T) {
	c := Config{
		Domain:       "cluster.local",
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16"), netip.MustParsePrefix("fd43::/112")},
		PodCIDRs:     []netip.Prefix{netip.MustParsePrefix("10.42.3.4/15")},
	}
	k, err := parseStanza(stanza(c))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"cluster.local.", "43.10.in-addr.arpa.",
		"0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.3.4.d.f.ip6.arpa.", "42.10.in-addr.arpa.", "43.10.in-addr.arpa."}
	if !slices.Equal(k.Zones, want) {
		t.Errorf("zones are %q", k.Zones)
	}
	if _, err := parseStanza(stanza(Config{Domain: "10.in-addr.arpa"})); err == nil {
		t.Error("a reverse zone as domain was accepted")
	}
}

func TestSameQuestion(t *testing.T) {
	query := new(dns.Msg).SetQuestion("a.example.org.", dns.TypeA)
	for name, row := range map[string]struct {
		reply *dns.Msg
		want  bool
	}{
		"same":         {new(dns.Msg).SetReply(query), true},
		"other case":   {new(dns.Msg).SetReply(new(dns.Msg).SetQuestion("A.Example.org.", dns.TypeA)), true},
		"other name":   {new(dns.Msg).SetReply(new(dns.Msg).SetQuestion("b.example.org.", dns.TypeA)), false},
		"other type":   {new(dns.Msg).SetReply(new(dns.Msg).SetQuestion("a.example.org.", dns.TypeAAAA)), false},
		"not a reply":  {query, false},
		"no questions": {&dns.Msg{MsgHdr: dns.MsgHdr{Response: true}}, false},
	} {
		if got := sameQuestion(query, row.reply); got != row.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

func TestShuffleKeepsEverythingAndTheCNAMEFirst(t *testing.T) {
	r := new(dns.Msg).SetQuestion("a.example.org.", dns.TypeA)
	for _, text := range []string{"a.example.org. 5 IN CNAME b.example.org.", "b.example.org. 5 IN A 192.0.2.1", "b.example.org. 5 IN A 192.0.2.2", "b.example.org. 5 IN A 192.0.2.3"} {
		rr, err := dns.NewRR(text)
		if err != nil {
			t.Fatal(err)
		}
		r.Answer = append(r.Answer, rr)
	}
	before := slices.Clone(r.Answer)
	firsts := map[string]bool{}
	for range 200 {
		var got recorder
		if err := (shufflingWriter{&got}).WriteMsg(r); err != nil {
			t.Fatal(err)
		}
		if len(got.msg.Answer) != 4 || got.msg.Answer[0] != before[0] {
			t.Fatalf("got %v", got.msg.Answer)
		}
		firsts[got.msg.Answer[1].String()] = true
	}
	if len(firsts) != 3 {
		t.Errorf("first addresses were %v", firsts)
	}
	if !slices.Equal(r.Answer, before) {
		t.Error("the message itself was changed")
	}
}

// recorder keeps the message written to it.
type recorder struct {
	dns.ResponseWriter
	msg *dns.Msg
}

func (r *recorder) WriteMsg(m *dns.Msg) error { r.msg = m; return nil }
