package external

import (
	"net"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/k3s-io/kine/pkg/dialer"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// dialTimeout bounds a connection being made, silence how long a database may leave what was sent to it unacknowledged: the
// kernel's own limit is a quarter of an hour, for which calls to a machine that is gone would hang.
const (
	dialTimeout = 5 * time.Second
	silence     = 20 * time.Second
)

// What the drivers have process-wide is changed here: how they dial, and what they do when they see no way on. It is read
// without a lock, already when a data source name is parsed, so that it must be done before anything runs.
func init() {
	dialer.CachingDialer.Dialer = &net.Dialer{Timeout: dialTimeout, Control: limitSilence}
	_ = mysql.SetLogger(&mysql.NopLogger{}) // it would write to standard error what it also returns
	logrus.AddHook(hook{})
}

func limitSilence(network, _ string, c syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var err error
	control := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
	})
	if control != nil {
		return control
	}
	return err
}

// hook keeps kine's drivers from ending the process when the database goes away in the middle of a transaction that
// compacts: the goroutine ends instead, which is one of guarded's.
type hook struct{}

func (hook) Levels() []logrus.Level { return []logrus.Level{logrus.FatalLevel} }

func (hook) Fire(e *logrus.Entry) error {
	if strings.HasPrefix(e.Message, "Transaction commit failed") || strings.HasPrefix(e.Message, "Transaction rollback failed") {
		runtime.Goexit()
	}
	return nil
}
