package hostos

import (
	"fmt"
	"net"
	"os"
	"sync"
)

// notifySocket is the service manager's, remembered from the first call.
var notifySocket = sync.OnceValue(takeNotifySocket)

// takeNotifySocket takes the variable out of the environment: Kubernetes' own components speak the same protocol and
// would claim readiness long before the node has it, and child processes would inherit it.
func takeNotifySocket() string {
	path := os.Getenv("NOTIFY_SOCKET")
	os.Unsetenv("NOTIFY_SOCKET")
	return path
}

// Notify tells the service manager a state such as "READY=1", "STOPPING=1" or "STATUS=...", several separated by line
// feeds. It does nothing when no service manager asked to be told. The first call, whatever its state, takes
// NOTIFY_SOCKET out of the environment, so it belongs before anything else is started.
func Notify(state string) error { return notify(notifySocket(), state) }

// notify sends one datagram; a path that begins with @ is in the abstract namespace.
func notify(path, state string) error {
	if path == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("reach service manager: %w", err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	return nil
}
