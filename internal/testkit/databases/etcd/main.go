// Command etcd is a member of etcd for tests, a cluster of its own: etcd DIRECTORY ADDRESS:PORT [CERT KEY CA]. It lives until a signal.
package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 && len(args) != 5 {
		return fmt.Errorf("usage: etcd DIRECTORY ADDRESS:PORT [CERT KEY CA]")
	}
	c := embed.NewConfig()
	scheme := "http"
	if len(args) == 5 {
		scheme = "https"
		c.ClientTLSInfo = transport.TLSInfo{CertFile: args[2], KeyFile: args[3], TrustedCAFile: args[4], ClientCertAuth: true}
	}
	c.Dir, c.LogLevel = args[0], "error"
	client := []url.URL{{Scheme: scheme, Host: args[1]}}
	c.ListenClientUrls, c.AdvertiseClientUrls = client, client
	c.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}} // there are no peers
	c.UnsafeNoFsync = true
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return err
	}
	e, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	defer e.Close()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	select {
	case <-ctx.Done():
		return nil
	case err := <-e.Err():
		return err
	}
}
