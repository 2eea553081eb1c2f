package cli

import (
	"io"
	"log/slog"
)

// NewLogger writes messages to w, in format "json" or else as text. Debug messages are left out unless asked for.
func NewLogger(w io.Writer, debug bool, format string) *slog.Logger {
	o := &slog.HandlerOptions{Level: slog.LevelInfo}
	if debug {
		o.Level = slog.LevelDebug
	}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
