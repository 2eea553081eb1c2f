// Package endpoint reads what a user says of a datastore: the URL, and the files for TLS.
//
// It promises that Parse finds every mistake that shows without a connection, that it changes nothing, and that neither an
// Endpoint printed nor an error holds a user name or a password.
package endpoint

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
)

// Kind is a sort of datastore.
type Kind string

// The kinds, as they are called in messages.
const (
	SQLite   Kind = "SQLite"
	Postgres Kind = "PostgreSQL"
	MySQL    Kind = "MySQL"
	NATS     Kind = "NATS"
	Etcd     Kind = "etcd"
)

// Files are the paths for TLS, PEM; all are optional. They are k3s's --datastore-cafile, -certfile and -keyfile.
type Files struct{ CA, Cert, Key string }

// Endpoint is a datastore that can be opened. The zero value is none.
type Endpoint struct {
	Kind Kind
	// Path is the file of an SQLite one; empty for the one in the data directory.
	Path string
	// DSN is what the driver of a database is given. It holds the password: it is not for messages.
	DSN string
	// Servers are etcd's URLs.
	Servers []string
	// TLS is the client's side of encryption; nil for none, or when DSN says it all.
	TLS *tls.Config
	// Files are the ones given, as absolute paths.
	Files Files

	shown string
}

// String is the endpoint without credentials and options.
func (e Endpoint) String() string { return e.shown }

// Format keeps what a verb such as %+v would print to what may be seen.
func (e Endpoint) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(e.shown)) }

// Local is whether the datastore is a file on this machine.
func (e Endpoint) Local() bool { return e.Kind == SQLite }

// Help names the forms of an endpoint.
const Help = "postgres://, mysql://, nats://, http:// or https:// (etcd), sqlite://"

// Parse reads an endpoint. An empty one is the SQLite file in the data directory.
func Parse(text string, files Files) (Endpoint, error) {
	if text == "" {
		text = "sqlite://"
	}
	e := Endpoint{}
	if err := e.setTLS(files); err != nil {
		return Endpoint{}, err
	}
	scheme, rest, found := strings.Cut(text, "://")
	if !found {
		return Endpoint{}, fmt.Errorf("it is no URL: it begins with %s", Help)
	}
	parse, known := map[string]func(rest string) error{
		"sqlite": e.sqlite, "postgres": e.postgres, "postgresql": e.postgres, "mysql": e.mysql,
		"nats": func(string) error { return e.nats(text) },
		"http": func(string) error { return e.etcd(text) }, "https": func(string) error { return e.etcd(text) },
	}[scheme]
	if !known {
		return Endpoint{}, fmt.Errorf("there is no datastore of the kind %q: it begins with %s", scheme+"://", Help)
	}
	if err := parse(rest); err != nil {
		return Endpoint{}, err
	}
	return e, nil
}

func (e *Endpoint) sqlite(path string) error {
	if e.TLS != nil {
		return errors.New("a file has no use for TLS: the CA, certificate and key are for databases on the network")
	}
	if strings.ContainsAny(path, "?#") {
		return fmt.Errorf("sqlite://%s: there are no options behind the path", path)
	}
	e.Kind, e.shown = SQLite, "sqlite://"+path
	if path == "" {
		return nil
	}
	if !filepath.IsAbs(path) {
		return fmt.Errorf("sqlite://%s: the path is not absolute, as in sqlite:///var/lib/state.db", path)
	}
	e.Path = filepath.Clean(path)
	return nil
}

// etcd takes a list of servers. They have no user and password: etcd knows its clients by certificates.
func (e *Endpoint) etcd(text string) error {
	e.Kind = Etcd
	for server := range strings.SplitSeq(text, ",") {
		u, err := url.Parse(strings.TrimSpace(server))
		switch {
		case err != nil, u.Port() == "", u.Scheme != "http" && u.Scheme != "https", strings.Trim(u.Path, "/") != "", u.RawQuery != "":
			return errors.New("it is no list of etcd's servers such as https://10.0.0.1:2379,https://10.0.0.2:2379")
		case u.User != nil:
			return errors.New("etcd takes no user and password in its URL: give a client certificate")
		case u.Scheme == "http" && e.TLS != nil:
			return fmt.Errorf("http://%s is not encrypted: write https:// to use TLS", u.Host)
		}
		e.Servers = append(e.Servers, u.Scheme+"://"+u.Host)
	}
	e.shown = strings.Join(e.Servers, ",")
	return nil
}
