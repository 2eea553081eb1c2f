package join

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/clusterd/clusterd/internal/hostos"
	"github.com/clusterd/clusterd/internal/join"
	"github.com/clusterd/clusterd/internal/pki"
)

// TestAnotherTokenIsPublishedOnce changes the token's file. What is published for it, some of it beside that file, must not
// be taken for a change again, and the end of the news of addresses not for news.
func TestAnotherTokenIsPublishedOnce(t *testing.T) {
	dir := t.TempDir()
	authorities, err := pki.Open(filepath.Join(dir, "tls"), pki.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ca, _, err := authorities.Read(pki.ServerCA)
	if err != nil {
		t.Fatal(err)
	}
	var published atomic.Int64
	client := fake.NewClientset()
	j := &Joining{client: client, log: slog.New(slog.DiscardHandler), cfg: Config{
		TokenFile: filepath.Join(dir, "token"), NodeTokenFile: filepath.Join(dir, "node-token"),
		Info: func() (join.Info, error) {
			published.Add(1)
			return join.Info{Servers: []string{"192.0.2.1:6443"}, ServerCA: string(ca), ClientCA: string(ca), ClusterDomain: "c",
				ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16")},
				ClusterDNS: []netip.Addr{netip.MustParseAddr("10.43.0.10")}}, nil
		},
	}}
	write := func(secret string) {
		t.Helper()
		if err := os.WriteFile(j.cfg.TokenFile, []byte(secret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one secret")
	ctx, cancel := context.WithCancel(t.Context())
	token := hostos.FileChanges(ctx, []string{j.cfg.TokenFile})
	addresses, ended := make(chan struct{}), make(chan struct{})
	j.insist(ctx)
	go func() {
		j.follow(ctx, addresses, token)
		close(ended)
	}()
	close(addresses)
	write("another secret")
	want := join.Split("another secret")
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		b, _ := os.ReadFile(j.cfg.NodeTokenFile)
		if strings.HasSuffix(strings.TrimSpace(string(b)), want.Bearer()) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the token for nodes is %s", b)
		}
	}
	time.Sleep(time.Second) // a few times of what a change takes to be told
	cancel()
	<-ended
	if n := published.Load(); n != 2 {
		t.Errorf("for a start and a change it was published %d times", n)
	}
	secrets, err := client.CoreV1().Secrets(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(secrets.Items) != 1 || !strings.HasSuffix(secrets.Items[0].Name, want.ID) {
		t.Errorf("the tokens are %v, %v", secrets, err)
	}
}
