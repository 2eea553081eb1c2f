package snapshot

import (
	"errors"
	"os"
)

// FailRenames lets n files be renamed and no more, until undo is called.
func FailRenames(n int) (undo func()) {
	rename = func(from, to string) error {
		if n == 0 {
			return errors.New("interrupted")
		}
		n--
		return os.Rename(from, to)
	}
	return func() { rename = os.Rename }
}
