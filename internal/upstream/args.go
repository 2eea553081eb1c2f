package upstream

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/meta"
	cliflag "k8s.io/component-base/cli/flag"
	"sigs.k8s.io/yaml"
)

// Shared is what users pass through to a component but what holds for the whole process.
type Shared struct {
	Gates     map[string]bool
	Verbosity int

	origin map[string]string // gate: who set it, as users know it
}

// TakeShared removes the entries for process-wide flags (feature-gates, v) from the key=value arguments of a component named
// flag, adds them to s, and returns the rest. The gates in the configuration file that the arguments may name (config=FILE)
// are added too; the component's own flag wins over its file.
//
// Why the files here: upstream sets such gates when it starts the component, for all that run in the process by then.
func (s *Shared) TakeShared(flag string, args []string) (rest []string, err error) {
	var errs []error
	gates, origin := map[string]bool{}, map[string]string{}
	for _, a := range args {
		key, value, _ := strings.Cut(strings.TrimPrefix(a, "--"), "=")
		if key == "config" {
			for k, v := range gatesOf(value) {
				gates[k], origin[k] = v, fmt.Sprintf("%s (--%s %s)", value, flag, key)
			}
		}
	}
	for _, a := range args {
		key, value, _ := strings.Cut(strings.TrimPrefix(a, "--"), "=")
		switch key {
		case "feature-gates":
			m := map[string]bool{}
			if err := cliflag.NewMapStringBool(&m).Set(value); err != nil {
				errs = append(errs, fmt.Errorf("--%s feature-gates=%s: %w", flag, value, err))
			}
			for k, v := range m {
				gates[k], origin[k] = v, fmt.Sprintf("--%s feature-gates=%s", flag, value)
			}
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
	return rest, errors.Join(append(errs, s.addGates(gates, origin)...)...)
}

// addGates adds what one component is to have. A gate that another one is to have otherwise is an error.
func (s *Shared) addGates(gates map[string]bool, origin map[string]string) (errs []error) {
	if s.Gates == nil {
		s.Gates, s.origin = map[string]bool{}, map[string]string{}
	}
	for _, k := range slices.Sorted(maps.Keys(gates)) {
		if old, ok := s.Gates[k]; ok && old != gates[k] {
			errs = append(errs, fmt.Errorf("%s: the feature gate %s is set to %t, but to %t by %s: all components share one set of gates", origin[k], k, gates[k], old, s.origin[k]))
			continue
		}
		s.Gates[k], s.origin[k] = gates[k], origin[k]
	}
	return errs
}

// gatesOf are the feature gates in a component's configuration file. What else is wrong with it is for the component to say.
func gatesOf(file string) map[string]bool {
	var c struct {
		FeatureGates map[string]bool `json:"featureGates"`
	}
	text, err := os.ReadFile(file)
	if err != nil || yaml.Unmarshal(text, &c) != nil {
		return nil
	}
	return c.FeatureGates
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
