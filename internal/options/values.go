package options

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/clusterd/clusterd/internal/config"
)

var argument = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9.-]*=`)

// Reader turns merged options into values and collects what is wrong with them.
type Reader struct {
	V *config.Values
	P *config.Problems
}

// Presence is what is asked of an option's value.
type Presence int

const (
	Optional Presence = iota
	Required          // not empty
	Existing          // if not empty, a regular file that is there
)

// Problem reports what is wrong with the value of option.
func (r Reader) Problem(option, format string, args ...any) {
	r.P.Addf("%s: %w", r.V.Place(option), fmt.Errorf(format, args...))
}

// Path makes the option's value an absolute path.
func (r Reader) Path(option string, want Presence) string {
	text := r.V.String(option)
	if text == "" {
		if want == Required {
			r.Problem(option, "needs a path")
		}
		return ""
	}
	abs, err := filepath.Abs(text)
	if err != nil {
		r.Problem(option, "find the working directory: %w", err)
	}
	if want == Existing {
		r.checkFile(option, abs)
	}
	return abs
}

func (r Reader) checkFile(option, path string) {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r.Problem(option, "%s does not exist", path)
	case err != nil:
		r.Problem(option, "%w", err)
	case !st.Mode().IsRegular():
		r.Problem(option, "%s is not a file", path)
	}
}

// Secret is what one option has, or the file that the option of that name with -file names, and which of the two it was. The
// file may be gone, or empty, where the machine has been let in by it before: it then has the file known. The value is never
// shown.
func (r Reader) Secret(name, known string) (option, text string) {
	inFile := name + "-file"
	text = r.V.String(name)
	file := r.Path(inFile, Optional)
	switch {
	case file == "":
		return name, text
	case text != "":
		r.Problem(inFile, "there is a %s already: give one of the two", name)
		return name, ""
	}
	data, err := os.ReadFile(file)
	if text = string(bytes.TrimSpace(data)); text != "" {
		return inFile, text
	}
	if _, unknown := os.Stat(known); unknown == nil && (err == nil || errors.Is(err, fs.ErrNotExist)) {
		return inFile, ""
	}
	if err == nil {
		err = fmt.Errorf("%s is empty", file)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%s does not exist", file)
	}
	r.Problem(inFile, "%w", err)
	return inFile, ""
}

// Choice takes one of allowed.
func (r Reader) Choice(option string, allowed []string, want Presence) string {
	text := r.V.String(option)
	if text == "" && want == Optional || slices.Contains(allowed, text) {
		return text
	}
	r.Problem(option, "%q is not one of %s", text, strings.Join(allowed, ", "))
	return ""
}

// Port takes a number from 1 to 65535.
func (r Reader) Port(option string) int {
	port, err := strconv.Atoi(r.V.String(option))
	if err != nil || validation.IsValidPortNum(port) != nil {
		r.Problem(option, "%q is not a port from 1 to 65535", r.V.String(option))
		return 0
	}
	return port
}

// URL takes an http or https URL, or nothing.
func (r Reader) URL(option string) string {
	text := r.V.String(option)
	if text == "" {
		return ""
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		r.Problem(option, "%q is not an http or https URL", text)
	}
	return text
}

// Server takes the URL of a server, or nothing: without a path, and with the port that servers have unless another one is
// given.
func (r Reader) Server(option string) string {
	text := r.V.String(option)
	if text == "" {
		return ""
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Path != "" && u.Path != "/" {
		r.Problem(option, "%q is not the URL of a server, such as https://192.0.2.1:6443", text)
		return ""
	}
	if u.Port() == "" {
		u.Host += ":6443"
	}
	return "https://" + u.Host
}

func (r Reader) image(option string) string {
	text := r.V.String(option)
	if strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' }) {
		r.Problem(option, "%q is not an image reference", text)
	}
	return text
}

// Arguments takes leading dashes off, which people copy from a component's own command line.
func (r Reader) Arguments(option string) []string {
	var all []string
	for _, text := range r.V.List(option) {
		arg := strings.TrimLeft(text, "-")
		if !argument.MatchString(arg) {
			r.Problem(option, "%q does not have the form key=value", text)
			continue
		}
		all = append(all, arg)
	}
	return all
}

// Addresses parses any number of addresses; nil when there are none or one is wrong.
func (r Reader) Addresses(option string) []netip.Addr {
	var all []netip.Addr
	for _, text := range r.V.Split(option) {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			r.Problem(option, "%q is not an IP address", text)
			return nil
		}
		all = append(all, a.Unmap())
	}
	return all
}

// TooMany is whether all has more than one member of a family.
func TooMany[T any](all []T, addr func(T) netip.Addr) bool {
	return len(all) > 2 || len(all) == 2 && addr(all[0]).Is4() == addr(all[1]).Is4()
}
