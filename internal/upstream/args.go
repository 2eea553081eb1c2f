package upstream

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/meta"
	cliflag "k8s.io/component-base/cli/flag"
)

// Shared is what users pass through to a component but what holds for the whole process.
type Shared struct {
	Gates     map[string]bool
	Verbosity int
}

// TakeShared removes the entries for process-wide flags (feature-gates, v) from the key=value arguments of a component named
// flag, adds them to s, and returns the rest.
func (s *Shared) TakeShared(flag string, args []string) (rest []string, err error) {
	var errs []error
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		switch strings.TrimPrefix(key, "--") {
		case "feature-gates":
			errs = append(errs, s.addGates(flag, value))
		case "v":
			n, err := strconv.Atoi(value)
			if err != nil {
				errs = append(errs, fmt.Errorf("--%s v=%s: not a number", flag, value))
			}
			s.Verbosity = max(s.Verbosity, n)
		default:
			rest = append(rest, a)
		}
	}
	return rest, errors.Join(errs...)
}

func (s *Shared) addGates(flag, list string) error {
	m := map[string]bool{}
	if err := cliflag.NewMapStringBool(&m).Set(list); err != nil {
		return fmt.Errorf("--%s feature-gates=%s: %w", flag, list, err)
	}
	if s.Gates == nil {
		s.Gates = map[string]bool{}
	}
	for k, v := range m {
		if old, ok := s.Gates[k]; ok && old != v {
			return fmt.Errorf("--%s feature-gates=%s: %s is set to %t elsewhere; all components share one set of gates", flag, list, k, old)
		}
		s.Gates[k] = v
	}
	return nil
}

// Parse sets a component's flags: first ours, then the user's key=value arguments, which win. All mistakes in the user's
// are in the error, each naming flag, the flag of clusterd that they came from.
func Parse(fs *pflag.FlagSet, flag string, ours, user []string) error {
	fs.SetOutput(io.Discard)
	fs.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	for _, a := range ours {
		if err := set(fs, a); err != nil {
			return fmt.Errorf("set a default of %s: %w", strings.TrimSuffix(flag, "-arg"), err)
		}
	}
	var errs []error
	for _, a := range user {
		if err := set(fs, a); err != nil {
			errs = append(errs, fmt.Errorf("--%s %s: %w", flag, a, err))
		}
	}
	return errors.Join(errs...)
}

func set(fs *pflag.FlagSet, arg string) error {
	key, value, found := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
	f := fs.Lookup(key)
	if f == nil {
		return fmt.Errorf("the component has no flag %q", key)
	}
	if !found {
		value = f.NoOptDefVal
	}
	return fs.Set(key, value)
}

// Join is how upstream's flags take lists of addresses and prefixes.
func Join[T fmt.Stringer](all []T) string {
	s := make([]string, len(all))
	for i, x := range all {
		s[i] = x.String()
	}
	return strings.Join(s, ",")
}

// DropManagedFields is an informers' transform: it drops what nothing reads from cached objects.
func DropManagedFields(o any) (any, error) {
	if a, err := meta.Accessor(o); err == nil && a.GetManagedFields() != nil {
		a.SetManagedFields(nil)
	}
	return o, nil
}

// Merge puts named flag sets into one.
func Merge(n cliflag.NamedFlagSets) *pflag.FlagSet {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, f := range n.FlagSets {
		fs.AddFlagSet(f)
	}
	return fs
}
