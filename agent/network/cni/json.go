package main

import (
	"errors"
	"strconv"
	"strings"
)

// socketKey is the member of the configuration that names the agent's socket.
const socketKey = `"socket"`

// socketPath finds the socket in the network configuration, without a JSON
// decoder: the agent wrote the configuration and the runtime only added to it.
func socketPath(conf []byte) (string, error) {
	text := string(conf)
	for {
		_, rest, found := strings.Cut(text, socketKey)
		if !found {
			return "", errors.New("the network configuration names no socket")
		}
		text = rest
		value, is := strings.CutPrefix(strings.TrimLeft(rest, " \t\r\n"), ":")
		if !is {
			continue // a string value of that text
		}
		if path, ok := unquote(strings.TrimLeft(value, " \t\r\n")); ok {
			return path, nil
		}
	}
}

// unquote reads the JSON string at the begin of s.
func unquote(s string) (string, bool) {
	if !strings.HasPrefix(s, `"`) {
		return "", false
	}
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			text, err := strconv.Unquote(s[:i+1]) // has all the escapes that Go's encoder writes
			return text, err == nil && text != ""
		}
	}
	return "", false
}

// quote writes s as a JSON string.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ':
			b.WriteByte(' ')
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
