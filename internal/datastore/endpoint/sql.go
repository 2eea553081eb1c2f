package endpoint

import (
	"errors"
	"net/url"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
)

// defaultDatabase is k3s's. It is made when it is missing.
const defaultDatabase = "kubernetes"

// The parsers' own errors can hold the whole endpoint, so what is said is what a right one looks like.
var (
	errPostgres = errors.New("it is no PostgreSQL endpoint such as postgres://USER:PASSWORD@HOST:5432/DATABASE" +
		" (characters other than letters and digits in the password are written as %XX)")
	errMySQL = errors.New("it is no MySQL endpoint such as mysql://USER:PASSWORD@tcp(HOST:3306)/DATABASE")
)

// postgres completes the URL, so that nothing is left for the driver to decide.
func (e *Endpoint) postgres(rest string) error {
	u, err := url.Parse("postgres://" + rest)
	if err != nil {
		return errPostgres
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/" + defaultDatabase
	}
	u.Path = strings.ToLower(u.Path) // as the driver does, for names that are not quoted
	options := u.Query()
	for name, value := range map[string]string{"sslrootcert": e.Files.CA, "sslcert": e.Files.Cert, "sslkey": e.Files.Key} {
		if value != "" {
			options.Set(name, value)
		}
	}
	if e.TLS != nil && !options.Has("sslmode") {
		options.Set("sslmode", "verify-full")
	}
	u.RawQuery = options.Encode()
	c, err := pgx.ParseConfig(u.String())
	if err != nil {
		return errPostgres
	}
	e.Kind, e.DSN, e.TLS = Postgres, u.String(), nil
	e.shown = (&url.URL{Scheme: "postgres", Host: u.Host, Path: u.Path}).String()
	if u.Host == "" { // a socket
		e.shown = "postgres://" + c.Host + u.Path
	}
	return nil
}

func (e *Endpoint) mysql(rest string) error {
	c, err := mysql.ParseDSN(rest)
	if err != nil {
		return errMySQL
	}
	if c.DBName == "" {
		c.DBName = defaultDatabase
	}
	e.Kind, e.DSN = MySQL, c.FormatDSN()
	e.shown = "mysql://" + c.Net + "(" + c.Addr + ")/" + c.DBName
	return nil
}

// nats takes a list of servers, of which the first may have options behind it.
func (e *Endpoint) nats(text string) error {
	wrong := errors.New("it is no NATS endpoint such as nats://USER:PASSWORD@HOST:4222?bucket=NAME")
	var hosts []string
	for server := range strings.SplitSeq(text, ",") {
		u, err := url.Parse(strings.TrimSpace(server))
		if err != nil || u.Scheme != "nats" || u.Host == "" {
			return wrong
		}
		if u.Query().Has("contextFile") {
			return errors.New("context files of NATS are not read: give the servers and credsFile")
		}
		hosts = append(hosts, u.Host)
	}
	e.Kind, e.DSN, e.shown = NATS, text, "nats://"+strings.Join(hosts, ",")
	return nil
}
