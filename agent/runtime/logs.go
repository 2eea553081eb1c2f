package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	goruntime "runtime"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
)

// logs passes what containerd logs on. containerd gets a logrus logger of its
// own, so that others in the process may do as they like with the standard one.
type logs struct {
	out    *slog.Logger
	host   *host
	logger *logrus.Logger
	closed atomic.Bool
}

// takeLogs points containerd's log package here. Only warnings are passed on at
// first, whatever open will allow: a CRI plugin sets the verbosity of klog, which
// is not its own in this process, by the level it finds when it is made.
func (r *Runtime) takeLogs() *logs {
	l := &logs{out: r.log, host: r.host, logger: logrus.New()}
	l.logger.SetOutput(io.Discard)
	l.logger.SetFormatter(discard{})
	l.logger.SetLevel(logrus.WarnLevel)
	l.logger.AddHook(l)
	l.logger.ExitFunc = l.exit
	log.L = logrus.NewEntry(l.logger)
	return l
}

// open lets information through as well.
func (l *logs) open(debug bool) {
	if debug {
		l.logger.SetLevel(logrus.InfoLevel)
	}
}

// close demotes all that follows: parts that stop in any order find others gone.
func (l *logs) close() { l.closed.Store(true) }

// exit is what log.Fatal ends in. The process ends in order, not here.
func (l *logs) exit(int) {
	l.host.fail(errors.New("containerd gave up"))
	goruntime.Goexit()
}

// Levels implements logrus.Hook.
func (l *logs) Levels() []logrus.Level { return logrus.AllLevels }

// Fire implements logrus.Hook.
func (l *logs) Fire(e *logrus.Entry) error {
	if e.Level == logrus.FatalLevel {
		l.host.fail(fatal(e))
		return nil
	}
	level := slogLevel(e)
	if l.closed.Load() {
		level = slog.LevelDebug
	}
	if !l.out.Enabled(context.Background(), level) {
		return nil
	}
	l.out.LogAttrs(context.Background(), level, e.Message, attributes(e)...)
	return nil
}

// fatal makes an error of what containerd ends with.
func fatal(e *logrus.Entry) error {
	if err, ok := e.Data[logrus.ErrorKey].(error); ok {
		return fmt.Errorf("containerd gave up: %s: %w", e.Message, err)
	}
	return fmt.Errorf("containerd gave up: %s", e.Message)
}

// slogLevel demotes what somebody else reports as well.
func slogLevel(e *logrus.Entry) slog.Level {
	switch {
	case e.Level >= logrus.DebugLevel, isNoise(e):
		return slog.LevelDebug
	case e.Level == logrus.InfoLevel:
		return slog.LevelInfo
	case e.Level == logrus.WarnLevel:
		return slog.LevelWarn
	}
	return slog.LevelError
}

// returned ends the message about a CRI call whose error goes to the caller,
// and the kubelet logs those.
const returned = " failed"

// noise is in messages that no reader can act on.
var noise = []string{
	"failed to load cni during init",       // the pod network comes later, and CRI watches for it
	"failed check for fsverity support",    // most file systems have none
	"cleaning up after shim",               // of a container that ends
	"cleanup warnings",                     // the same
	"failed sending message on channel",    // to a shim that has ended
	"warnings while cleaning up dead shim", // that runc has nothing left of it
	"failed to get task metrics",           // of a container that has just ended
	"cgroups: epoll wait",                  // a shim watched the memory of a container that has ended
}

func isNoise(e *logrus.Entry) bool {
	err, isError := e.Data[logrus.ErrorKey].(error)
	switch {
	case isError && strings.HasSuffix(e.Message, returned):
		return true
	case isError && e.Message == "failed to delete task" && strings.Contains(err.Error(), "container not created"):
		return true // there is nothing to delete: its start was cut off
	}
	return slices.ContainsFunc(noise, func(text string) bool { return strings.Contains(e.Message, text) })
}

func attributes(e *logrus.Entry) []slog.Attr {
	attrs := make([]slog.Attr, 0, len(e.Data))
	for key, value := range e.Data {
		attrs = append(attrs, slog.Any(key, value))
	}
	slices.SortFunc(attrs, func(a, b slog.Attr) int { return strings.Compare(a.Key, b.Key) })
	return attrs
}

// discard formats nothing: the hook is the output.
type discard struct{}

// Format implements logrus.Formatter.
func (discard) Format(*logrus.Entry) ([]byte, error) { return nil, nil }
