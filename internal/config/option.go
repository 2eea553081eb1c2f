package config

import (
	"fmt"
	"strconv"

	"github.com/urfave/cli/v2"
)

// kind is how many values of which sort an option takes.
type kind int

const (
	single kind = iota
	list
	toggle
)

// option is what this package needs to know of a flag.
type option struct {
	name     string
	kind     kind
	defaults []string
}

func newOption(f cli.Flag) (option, error) {
	name := f.Names()[0]
	switch f := f.(type) {
	case *cli.StringFlag:
		return option{name: name, kind: single, defaults: []string{f.Value}}, nil
	case *cli.StringSliceFlag:
		o := option{name: name, kind: list}
		if f.Value != nil {
			o.defaults = f.Value.Value()
		}
		return o, nil
	case *cli.BoolFlag:
		return option{name: name, kind: toggle, defaults: []string{strconv.FormatBool(f.Value)}}, nil
	}
	return option{}, fmt.Errorf("--%s: flags of the type %T cannot be merged", name, f)
}

func (o option) fromContext(c *cli.Context) []string {
	switch o.kind {
	case list:
		return c.StringSlice(o.name)
	case toggle:
		return []string{strconv.FormatBool(c.Bool(o.name))}
	}
	return []string{c.String(o.name)}
}

// check says what is wrong with the number or the form of items.
func (o option) check(items []string) error {
	if o.kind != list && len(items) != 1 {
		return fmt.Errorf("takes one value, not a list of %d", len(items))
	}
	if o.kind == toggle {
		if _, err := strconv.ParseBool(items[0]); err != nil {
			return fmt.Errorf("%q is neither true nor false", items[0])
		}
	}
	return nil
}
