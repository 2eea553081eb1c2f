package hostos

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// Dump calls list again while what it lists changes meanwhile, so that the
// result is whole: the kernel marks such a listing as interrupted.
func Dump[T any](list func() ([]T, error)) (all []T, err error) {
	for range 10 {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}
