// Command tool is what the pods of the end-to-end tests run: a server to probe and talk to, and a client that resolves
// names with Go's resolver, since a static busybox cannot.
//
//	tool serve [--http ADDRESS] [--grpc ADDRESS]
//	tool get [--count N] URL
//	tool lookup [--type A|SRV|PTR|CNAME] NAME
//
// The server answers / with its host name, /remote with the client's address and /healthz with 200 until somebody has
// posted to /fail. Its gRPC health service knows "" as serving and "down" as not serving.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// timeout bounds a client's single request or lookup.
const timeout = 5 * time.Second

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "tool:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: tool serve|get|lookup")
	}
	flags := flag.NewFlagSet(args[0], flag.ExitOnError)
	web := flags.String("http", ":8080", "address of the HTTP server")
	rpc := flags.String("grpc", ":9090", "address of the gRPC server")
	count := flags.Int("count", 1, "number of requests, each on a connection of its own")
	kind := flags.String("type", "A", "record to look up")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	switch args[0] {
	case "serve":
		return serve(*web, *rpc)
	case "get":
		return get(flags.Arg(0), *count)
	case "lookup":
		return lookup(*kind, flags.Arg(0))
	}
	return fmt.Errorf("unknown command %q", args[0])
}

func serve(web, rpc string) error {
	failed := make(chan error, 2)
	go func() { failed <- serveHealth(rpc) }()
	go func() { failed <- http.ListenAndServe(web, handler()) }()
	return <-failed
}

func serveHealth(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	status := health.NewServer()
	status.SetServingStatus("down", healthpb.HealthCheckResponse_NOT_SERVING)
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, status)
	return s.Serve(l)
}

func handler() http.Handler {
	var broken atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		name, err := os.Hostname()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintln(w, name)
	})
	mux.HandleFunc("GET /remote", func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintln(w, host)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if broken.Load() {
			http.Error(w, "broken", http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("POST /fail", func(http.ResponseWriter, *http.Request) { broken.Store(true) })
	return mux
}

func get(url string, count int) error {
	client := &http.Client{Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true}}
	for range count {
		res, err := client.Get(url)
		if err != nil {
			return err
		}
		_, err = io.Copy(os.Stdout, res.Body)
		res.Body.Close()
		if err != nil {
			return err
		}
		if res.StatusCode >= http.StatusBadRequest {
			return fmt.Errorf("get %s: %s", url, res.Status)
		}
	}
	return nil
}

// lookup prints what the name resolves to, a record a line; SRV records as PORT TARGET.
func lookup(kind, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var found []string
	var err error
	switch kind {
	case "A":
		found, err = net.DefaultResolver.LookupHost(ctx, name)
	case "PTR":
		found, err = net.DefaultResolver.LookupAddr(ctx, name)
	case "CNAME":
		found = make([]string, 1)
		found[0], err = net.DefaultResolver.LookupCNAME(ctx, name)
	case "SRV":
		var records []*net.SRV
		_, records, err = net.DefaultResolver.LookupSRV(ctx, "", "", name)
		for _, r := range records {
			found = append(found, fmt.Sprint(r.Port, " ", r.Target))
		}
	default:
		return fmt.Errorf("unknown type %q", kind)
	}
	if err != nil {
		return err
	}
	for _, f := range found {
		fmt.Println(f)
	}
	return nil
}
