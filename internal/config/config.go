// Package config merges the options of a command from its command line, the environment and configuration files, by one
// rule: the flag --foo-bar is the key foo-bar in a file and the variable CLUSTERD_FOO_BAR in the environment.
//
// The command line wins over the environment, the environment over the files, the files over the defaults; each level
// replaces what the lower ones said, for lists as a whole. Files are the one named by the option config and
// after it, in the order of their names, those that match *.yaml in the directory beside it called like it with ".d" at
// the end; a later one wins, unless it adds to a list with the key "foo-bar+". An unknown key or CLUSTERD_ variable is a
// problem that names the nearest known one. Nothing stops at the first problem: all are collected.
package config

import (
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"
)

// FileFlag is the name of the option that names the configuration file. It cannot be set in a file.
const FileFlag = "config"

const envPrefix = "CLUSTERD_"

// EnvName is the environment variable of an option.
func EnvName(option string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(option, "-", "_"))
}

// value is what one level said about an option, and how a user finds that place again.
type value struct {
	items []string
	place string
}

// Values are the merged options of one command.
type Values struct {
	options map[string]option
	set     map[string]value
}

// Load merges what is known about flags, which may be of the types StringFlag, StringSliceFlag and BoolFlag: only options
// that are set on c's command line are taken from c. Problems with the environment and the files are added to p, after
// which the values are still usable, so that their own problems can be found too.
func Load(c *cli.Context, flags []cli.Flag, p *Problems) *Values {
	v := newValues(flags, p)
	v.readCommandLine(c)
	v.readEnvironment(p)
	v.readFiles(p)
	return v
}

// LoadWithoutCommandLine is Load for a command that has not got flags itself but needs to know what they would be.
func LoadWithoutCommandLine(flags []cli.Flag, p *Problems) *Values {
	v := newValues(flags, p)
	v.readEnvironment(p)
	v.readFiles(p)
	return v
}

func newValues(flags []cli.Flag, p *Problems) *Values {
	v := &Values{options: map[string]option{}, set: map[string]value{}}
	for _, f := range flags {
		o, err := newOption(f)
		if err != nil {
			p.Add(err)
			continue
		}
		v.options[o.name] = o
	}
	return v
}

// String is the value of an option that has one; an unset one has its default, and an unknown one is empty.
func (v *Values) String(name string) string {
	items := v.items(name)
	if len(items) == 0 {
		return ""
	}
	return items[len(items)-1]
}

// List is the value of an option that can be repeated, one entry an occurrence.
func (v *Values) List(name string) []string { return slices.Clone(v.items(name)) }

// Split is List for options whose entries cannot contain commas: each entry may hold several, separated by commas.
// Space around them is dropped and so are empty ones.
func (v *Values) Split(name string) []string {
	var all []string
	for _, item := range v.items(name) {
		for part := range strings.SplitSeq(item, ",") {
			if part = strings.TrimSpace(part); part != "" {
				all = append(all, part)
			}
		}
	}
	return all
}

// Bool is the value of a switch. Other values than true and false were reported by Load and count as false.
func (v *Values) Bool(name string) bool {
	b, err := strconv.ParseBool(v.String(name))
	return err == nil && b
}

// IsSet is whether any level above the defaults has the option.
func (v *Values) IsSet(name string) bool {
	_, ok := v.set[name]
	return ok
}

// Place says where the option's value comes from, in a form that begins a message: "--node-name", "CLUSTERD_NODE_NAME" or
// "/etc/clusterd/config.yaml:7: node-name".
func (v *Values) Place(name string) string {
	if set, ok := v.set[name]; ok {
		return set.place
	}
	return "--" + name
}

func (v *Values) items(name string) []string {
	if set, ok := v.set[name]; ok {
		return set.items
	}
	return v.options[name].defaults
}

func (v *Values) readCommandLine(c *cli.Context) {
	for name, o := range v.options {
		if c.IsSet(name) {
			v.set[name] = value{items: o.fromContext(c), place: "--" + name}
		}
	}
}

// accept sets a value if it fits the option's kind.
func (v *Values) accept(name string, val value, p *Problems) {
	if err := v.options[name].check(val.items); err != nil {
		p.Addf("%s: %w", val.place, err)
		return
	}
	v.set[name] = val
}

// names are all options in order, so that problems come in the same order each time.
func (v *Values) names() []string {
	names := make([]string, 0, len(v.options))
	for name := range v.options {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
