package config

import (
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// forScripts are what this repository's scripts and tests are told by; they may be exported when one of them runs clusterd.
// A name that ends in _ stands for all that begin with it.
var forScripts = []string{"CLUSTERD_BIN", "CLUSTERD_E2E_", "CLUSTERD_RELEASE", "CLUSTERD_TEST_"}

// readEnvironment takes variables that are not empty. The entries of a list stand on a line each.
func (v *Values) readEnvironment(p *Problems) {
	v.refuseUnknownVariables(p)
	for _, name := range v.names() {
		text := os.Getenv(EnvName(name))
		if text == "" || v.IsSet(name) {
			continue
		}
		items := []string{text}
		if v.options[name].kind == list {
			items = strings.Split(strings.TrimRight(text, "\n"), "\n")
		}
		v.accept(name, value{items: items, place: EnvName(name)}, p)
	}
}

// refuseUnknownVariables reports variables that begin like ours and are no option's.
//
// Why an error and not a warning: a misspelt variable is an option that is not set, such as an address or a disabled
// add-on, and a cluster made without it is hard to change afterwards. The prefix is ours alone, but for two kinds of
// variables that nobody has written for us, which pass: those of our own scripts, and those that Kubernetes puts into each
// container for a Service whose name begins with clusterd. Empty ones count as unset, like those of options.
func (v *Values) refuseUnknownVariables(p *Problems) {
	known := map[string]bool{}
	for name := range v.options {
		known[EnvName(name)] = true
	}
	environment := slices.Sorted(slices.Values(os.Environ()))
	for _, variable := range environment {
		name, text, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, envPrefix) || text == "" || known[name] || isForScripts(name) || isServiceLink(name, text) {
			continue
		}
		word := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, envPrefix), "_", "-"))
		p.Addf("%s: unknown variable, the nearest known one is %s", name, EnvName(Nearest(word, v.names())))
	}
}

func isForScripts(name string) bool {
	return slices.ContainsFunc(forScripts, func(known string) bool {
		return name == known || strings.HasSuffix(known, "_") && strings.HasPrefix(name, known)
	})
}

// The names that Kubernetes and Docker give to the variables of a Service, with the Service's own name before them.
var (
	linkHost   = regexp.MustCompile(`_SERVICE_HOST$|_PORT_[0-9]+_(TCP|UDP|SCTP)_ADDR$`)
	linkNumber = regexp.MustCompile(`_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT_[0-9]+_(TCP|UDP|SCTP)_PORT$`)
	linkProto  = regexp.MustCompile(`_PORT_[0-9]+_(TCP|UDP|SCTP)_PROTO$`)
	linkURL    = regexp.MustCompile(`_PORT(_[0-9]+_(TCP|UDP|SCTP))?$`)
	linkTarget = regexp.MustCompile(`^(tcp|udp|sctp)://`)
)

// isServiceLink is whether a variable tells a container of a Service. The value counts too, so that a misspelt option is
// not taken for one.
func isServiceLink(name, text string) bool {
	switch {
	case linkHost.MatchString(name):
		_, err := netip.ParseAddr(text)
		return err == nil
	case linkNumber.MatchString(name):
		_, err := strconv.ParseUint(text, 10, 16)
		return err == nil
	case linkProto.MatchString(name):
		return slices.Contains([]string{"tcp", "udp", "sctp"}, text)
	case linkURL.MatchString(name):
		return linkTarget.MatchString(text)
	}
	return false
}
