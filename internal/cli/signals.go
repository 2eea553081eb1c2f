package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Signals returns a context that ends at the first SIGTERM or SIGINT, with a cause that names it. A second one calls exit
// with 128 plus the signal's number: for somebody who does not want to wait for an orderly stop. release gives the
// signals back and ends the context.
func Signals(parent context.Context, exit func(code int)) (ctx context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(parent)
	caught := make(chan os.Signal, 2)
	done := make(chan struct{})
	signal.Notify(caught, syscall.SIGTERM, syscall.SIGINT)
	go watch(caught, done, cancel, exit)
	return ctx, func() {
		signal.Stop(caught)
		close(done)
		cancel(context.Canceled)
	}
}

func watch(caught <-chan os.Signal, done <-chan struct{}, cancel context.CancelCauseFunc, exit func(int)) {
	for first := true; ; first = false {
		select {
		case s := <-caught:
			if !first {
				exit(128 + int(s.(syscall.Signal)))
				return
			}
			cancel(fmt.Errorf("received %s", s))
		case <-done:
			return
		}
	}
}
