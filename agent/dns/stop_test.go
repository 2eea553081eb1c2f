package dns

import (
	"context"
	"errors"
	"net"
	"testing"

	mdns "github.com/miekg/dns"
)

// client is where an answer would go.
type client struct{ mdns.ResponseWriter }

func (client) RemoteAddr() net.Addr { return &net.UDPAddr{} }

// TestStopEndsQueriesUnderWay asks a resolver that says nothing. The error tells that it was the stop that ended the query,
// and not the time that a resolver has.
func TestStopEndsQueriesUnderWay(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	life, stop := context.WithCancel(t.Context())
	f := newForwarder(life)
	f.set([]string{silent.LocalAddr().String()})
	ended := make(chan error, 1)
	go func() {
		_, err := f.ServeDNS(t.Context(), client{}, new(mdns.Msg).SetQuestion("a.example.", mdns.TypeA))
		ended <- err
	}()
	if _, _, err := silent.ReadFrom(make([]byte, 512)); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the query ended with %v", err)
	}
}
