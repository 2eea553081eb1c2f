package config

import (
	"errors"
	"fmt"
)

// Error holds every problem that was found in a configuration.
type Error struct {
	Problems []error
}

// Error has a line for each problem.
func (e *Error) Error() string { return errors.Join(e.Problems...).Error() }

// Unwrap gives errors.Is and errors.As access to the problems.
func (e *Error) Unwrap() []error { return e.Problems }

// Problems collects what is wrong with a configuration. The zero value is ready for use.
type Problems struct {
	found []error
}

// Addf adds a problem that is described like an error by fmt.Errorf.
func (p *Problems) Addf(format string, args ...any) {
	p.found = append(p.found, fmt.Errorf(format, args...))
}

// Add adds err, or the problems of an *Error one by one. It does nothing with nil.
func (p *Problems) Add(err error) {
	if e, ok := errors.AsType[*Error](err); ok {
		p.found = append(p.found, e.Problems...)
	} else if err != nil {
		p.found = append(p.found, err)
	}
}

// Err is an *Error with all problems, nil when there are none.
func (p *Problems) Err() error {
	if len(p.found) == 0 {
		return nil
	}
	return &Error{Problems: p.found}
}

// Join is an *Error with the problems of all errs, nil when all are nil.
func Join(errs ...error) error {
	p := &Problems{}
	for _, err := range errs {
		p.Add(err)
	}
	return p.Err()
}
