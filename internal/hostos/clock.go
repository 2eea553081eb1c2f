package hostos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// ClockChanges tells when the clock of the machine has been set, or has gone on after a sleep, until ctx ends, when the
// channel is closed. It costs nothing while it does not happen. A clock that is only slowed down or sped up is not told of.
func ClockChanges(ctx context.Context) (<-chan struct{}, error) {
	// A timer for the end of time, which the kernel cancels when the clock is set.
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch the clock: make a timer: %w", err)
	}
	timer := os.NewFile(uintptr(fd), "timer")
	never := unix.ItimerSpec{Value: unix.NsecToTimespec(math.MaxInt64)}
	if err := unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME|unix.TFD_TIMER_CANCEL_ON_SET, &never, nil); err != nil {
		return nil, errors.Join(fmt.Errorf("watch the clock: set a timer: %w", err), timer.Close())
	}
	context.AfterFunc(ctx, func() { _ = timer.Close() })
	return cancellations(timer), nil
}

// cancellations tells each time that reading from the timer says that it was cancelled, and is closed when it is.
func cancellations(timer io.Reader) <-chan struct{} {
	told := make(chan struct{}, 1)
	go func() {
		defer close(told)
		var expirations [8]byte
		for {
			if _, err := timer.Read(expirations[:]); !errors.Is(err, unix.ECANCELED) {
				return // closed
			}
			select {
			case told <- struct{}{}:
			default:
			}
		}
	}()
	return told
}
