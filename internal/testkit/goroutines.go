package testkit

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"
)

// leakPatience is how long goroutines may take to end after their owner has.
const leakPatience = 2 * time.Second

// goroutines returns the stack of every goroutine by its header's number.
func goroutines() map[string]string {
	buf := make([]byte, 1<<20)
	n := runtime.Stack(buf, true)
	for n == len(buf) {
		buf = make([]byte, 2*len(buf))
		n = runtime.Stack(buf, true)
	}
	stacks := map[string]string{}
	for stack := range strings.SplitSeq(string(buf[:n]), "\n\n") {
		// A header reads "goroutine 7 [running]:".
		id, _, _ := strings.Cut(strings.TrimPrefix(stack, "goroutine "), " ")
		stacks[id] = stack
	}
	return stacks
}

// leaked waits for goroutines that were not there before to end, and returns an
// error with the stacks of those that do not.
func (k contract) leaked(before map[string]string) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(leakPatience); ; <-tick.C {
		errs := k.unknown(before, goroutines())
		if len(errs) == 0 || time.Now().After(deadline) {
			return errors.Join(errs...)
		}
	}
}

func (k contract) unknown(before, now map[string]string) (errs []error) {
	for id, stack := range now {
		if _, known := before[id]; !known && !k.excuses(stack) {
			errs = append(errs, fmt.Errorf("leaked goroutine %s", stack))
		}
	}
	return errs
}

func (k contract) excuses(stack string) bool {
	for _, text := range k.excused {
		if strings.Contains(stack, text) {
			return true
		}
	}
	return false
}
