// Package registries decides where an image is pulled from: it reads
// registries.yaml, in the format of k3s, and gives containerd a source for each
// pull that tries the mirrors and then the registry itself, with the configured
// rewrites, credentials and TLS files.
//
// It promises that a changed file holds from the next pull on, without a
// restart and without anything that watches the file, and that a file which
// became invalid leaves the last good one in force.
//
// Why not containerd's hosts.toml: it knows neither rewrites nor credentials
// (those are static and deprecated there), and a proxy that adds them would be
// one more socket which hands out private images. containerd takes any
// implementation of its transfer interfaces as source, so this one is used in
// the process.
package registries

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// wildcard as the name of a mirror or host holds for all that have no entry.
const wildcard = "*"

// Registries is the contents of a registries.yaml.
type Registries struct {
	// Mirrors are by the registry's name in image references, or "*".
	Mirrors map[string]Mirror `yaml:"mirrors"`
	// Configs are by host[:port] of an endpoint or registry, or "*".
	Configs map[string]Host `yaml:"configs"`
}

// Mirror says where the images of one registry are fetched before the registry
// itself is asked.
type Mirror struct {
	// Endpoints are URLs, tried in order; https if they have no scheme. A path
	// replaces the usual "/v2".
	Endpoints []Endpoint `yaml:"endpoint"`
	// Rewrites change repository names at the endpoints, not at the registry.
	Rewrites Rewrites `yaml:"rewrite"`
}

// Host is how to talk to one host.
type Host struct {
	Auth Auth `yaml:"auth"`
	TLS  TLS  `yaml:"tls"`
}

// Auth is credentials; one of the forms is enough.
type Auth struct {
	Username string `yaml:"username"`
	Password string `yaml:"password"`
	// Auth is base64 of "username:password".
	Auth string `yaml:"auth"`
	// IdentityToken is exchanged for access tokens at the registry's token server.
	IdentityToken string `yaml:"identity_token"`
}

// TLS names PEM files, read at each pull.
type TLS struct {
	CAFile             string `yaml:"ca_file"`
	CertFile           string `yaml:"cert_file"`
	KeyFile            string `yaml:"key_file"`
	InsecureSkipVerify bool   `yaml:"insecure_skip_verify"`
}

// Endpoint is the base of a registry's API.
type Endpoint struct {
	Scheme string // "http" or "https"
	Host   string // with port, if any
	Path   string // without a slash at the end
}

// Rewrites are tried in the order of the file; the first that matches counts.
type Rewrites []Rewrite

// Rewrite replaces what matches Pattern in a repository's name.
type Rewrite struct {
	Pattern *regexp.Regexp
	Replace string
}

// Parse reads a registries.yaml. Unknown keys and wrong values are errors with
// the line; no error holds a secret.
func Parse(data []byte) (*Registries, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	var r Registries
	if err := decoder.Decode(&r); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var errs []error
	for host, c := range r.Configs {
		if err := c.validate(); err != nil {
			errs = append(errs, fmt.Errorf("configs: %s: %w", host, err))
		}
	}
	return &r, errors.Join(errs...)
}

func (h Host) validate() error {
	if (h.TLS.CertFile == "") != (h.TLS.KeyFile == "") {
		return errors.New("tls: cert_file and key_file need each other")
	}
	_, _, err := h.Auth.credentials()
	return err
}

// credentials returns what containerd's authorizer wants: a user name and a
// password, or no user name and an identity token.
func (a Auth) credentials() (user, secret string, err error) {
	switch {
	case a.Username != "":
		return a.Username, a.Password, nil
	case a.IdentityToken != "":
		return "", a.IdentityToken, nil
	case a.Auth != "":
		plain, err := base64.StdEncoding.DecodeString(strings.TrimRight(a.Auth, "\x00"))
		user, secret, ok := strings.Cut(string(plain), ":")
		if err != nil || !ok {
			return "", "", errors.New("auth: auth is not base64 of username:password")
		}
		return user, strings.TrimRight(secret, "\x00"), nil
	}
	return "", "", nil
}

func (a Auth) empty() bool { return a == Auth{} }

// mirror returns the entry for a registry's name.
func (r *Registries) mirror(registry string) Mirror {
	if m, ok := r.Mirrors[registry]; ok {
		return m
	}
	return r.Mirrors[wildcard]
}

// config returns the entry for the first of the names that has one.
func (r *Registries) config(hosts ...string) Host {
	for _, host := range append(hosts, wildcard) {
		if c, ok := r.Configs[host]; ok {
			return c
		}
	}
	return Host{}
}

// UnmarshalYAML parses a URL.
func (e *Endpoint) UnmarshalYAML(node *yaml.Node) error {
	var text string
	if err := node.Decode(&text); err != nil {
		return err
	}
	parsed, err := parseEndpoint(text)
	if err != nil {
		return fmt.Errorf("line %d: %w", node.Line, err)
	}
	*e = parsed
	return nil
}

func parseEndpoint(text string) (Endpoint, error) {
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	if err != nil {
		return Endpoint{}, fmt.Errorf("endpoint: %w", err)
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return Endpoint{}, fmt.Errorf("endpoint %s: scheme is not http or https", u.Redacted())
	case u.Host == "":
		return Endpoint{}, fmt.Errorf("endpoint %s: no host", u.Redacted())
	case u.User != nil:
		return Endpoint{}, fmt.Errorf("endpoint %s: credentials belong into configs", u.Redacted())
	}
	path := strings.TrimRight(u.Path, "/")
	if path == "" {
		path = defaultPath
	}
	return Endpoint{Scheme: u.Scheme, Host: u.Host, Path: path}, nil
}

// UnmarshalYAML keeps the order of the map.
func (r *Rewrites) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: rewrite is not a map of pattern to replacement", node.Line)
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		pattern, err := regexp.Compile(key.Value)
		if err != nil {
			return fmt.Errorf("line %d: rewrite: %w", key.Line, err)
		}
		*r = append(*r, Rewrite{Pattern: pattern, Replace: value.Value})
	}
	return nil
}

// apply returns the name that a repository has at the mirror.
func (r Rewrites) apply(repository string) string {
	for _, rewrite := range r {
		if renamed := rewrite.Pattern.ReplaceAllString(repository, rewrite.Replace); renamed != repository {
			return renamed
		}
	}
	return repository
}
