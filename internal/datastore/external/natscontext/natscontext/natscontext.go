// Package natscontext stands for the one of NATS's module jsm.go, of which kine's driver reads files with settings for
// connections. Those are refused before the driver is asked, so nothing here does anything.
package natscontext

import (
	"errors"

	"github.com/nats-io/nats.go"
)

// Context is the settings of a file.
type Context struct{}

// NewFromFile refuses the file.
func NewFromFile(string, ...any) (*Context, error) {
	return nil, errors.New("context files of NATS are not read")
}

// ServerURL is where the servers are.
func (*Context) ServerURL() string { return "" }

// NATSOptions are the options for a connection.
func (*Context) NATSOptions(opts ...nats.Option) ([]nats.Option, error) { return opts, nil }
