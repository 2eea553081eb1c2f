// Package token keeps the server's secret for joining nodes in a file that only root can read. It never logs the secret.
package token

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/clusterd/clusterd/internal/atomicfile"
)

// Ensure makes sure that the file at path holds a token: the given one if there is one, else the one that is there, else a
// new one of 128 random bits.
func Ensure(path, given string) error {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the server token: %w", err)
	}
	old = bytes.TrimSpace(old)
	switch {
	case given == "" && len(old) > 0, given == string(old) && given != "":
		return nil
	case given == "":
		given = rand.Text()
	}
	if err := atomicfile.WriteDurable(path, 0o600, []byte(given+"\n")); err != nil {
		return fmt.Errorf("write the server token: %w", err)
	}
	return nil
}

// Read returns the token in the file at path.
func Read(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read the server token: %w", err)
	}
	if text = bytes.TrimSpace(text); len(text) == 0 {
		return "", fmt.Errorf("read the server token: %s is empty", path)
	}
	return string(text), nil
}
