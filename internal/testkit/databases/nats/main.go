// Command nats is a NATS server with JetStream for tests: nats DIRECTORY ADDRESS PORT USER PASSWORD. It lives until a signal.
//
// It is a module of its own, so that the server is no dependency of what is tested.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/nats-io/nats-server/v2/server"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 5 {
		return fmt.Errorf("usage: nats DIRECTORY ADDRESS PORT USER PASSWORD")
	}
	port, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	s, err := server.NewServer(&server.Options{
		StoreDir: args[0], Host: args[1], Port: port, Username: args[3], Password: args[4], JetStream: true, NoSigs: true,
	})
	if err != nil {
		return err
	}
	s.ConfigureLogger()
	s.Start()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	<-ctx.Done()
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}
