package external

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/clusterd/clusterd/internal/datastore/endpoint"
)

const (
	// tryTimeout bounds one attempt to reach a database.
	tryTimeout = 10 * time.Second
	// firstPause and lastPause are between attempts, doubled each time.
	firstPause = 250 * time.Millisecond
	lastPause  = 5 * time.Second
	// repeatAfter is how long the same reason of waiting is not said again.
	repeatAfter = 10 * time.Minute
)

// refusal is an error that waiting does not mend.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// Wait returns when the datastore answers. The error is ctx's, or says why waiting is of no use.
func Wait(ctx context.Context, e endpoint.Endpoint, log *slog.Logger) error {
	return retry(ctx, e, log, func(ctx context.Context) error { return reach(ctx, e) })
}

// retry tries until it works, or never will.
func retry(ctx context.Context, e endpoint.Endpoint, log *slog.Logger, try func(context.Context) error) error {
	began, reason, said := time.Now(), "", time.Time{}
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		bounded, cancel := context.WithTimeout(ctx, tryTimeout)
		err := try(bounded)
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if r, ok := errors.AsType[refusal](err); ok {
			return fmt.Errorf("datastore %s: %w", e, r.error)
		}
		if err == nil {
			if reason != "" {
				log.Info("the datastore answers", "endpoint", e.String(), "after", time.Since(began).Round(time.Second))
			}
			return nil
		}
		if reason != err.Error() && time.Since(said) > lastPause || time.Since(said) > repeatAfter {
			reason, said = err.Error(), time.Now()
			log.Warn("waiting for the datastore", "endpoint", e.String(), "reason", reason)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reach asks the database for an answer of any kind.
func reach(ctx context.Context, e endpoint.Endpoint) error {
	switch e.Kind {
	case endpoint.Postgres:
		return reachPostgres(ctx, e.DSN)
	case endpoint.MySQL:
		return reachMySQL(ctx, e.DSN, e.TLS)
	case endpoint.NATS:
		return reachNATS(e)
	case endpoint.Etcd:
		return reachEtcd(ctx, e)
	}
	return refusal{fmt.Errorf("there is no way to %s", e.Kind)}
}

// The codes of PostgreSQL for a database that will be there in a moment, or has been made by then.
const (
	pgCannotConnectNow = "57P03"
	pgTooMany          = "53300"
	pgNoDatabase       = "3D000"
)

func reachPostgres(ctx context.Context, dsn string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err == nil {
		return conn.Close(ctx)
	}
	answer, answered := errors.AsType[*pgconn.PgError](err)
	switch {
	case !answered:
		return unwrapped(err)
	case answer.Code == pgNoDatabase:
		return nil
	case answer.Code == pgCannotConnectNow || answer.Code == pgTooMany:
		return errors.New(answer.Message)
	}
	return refusal{fmt.Errorf("%s (SQLSTATE %s)", answer.Message, answer.Code)}
}

// unwrapped leaves out the user and the database, which pgx puts before the reason.
func unwrapped(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
}

// The numbers of MySQL's errors that tell of credentials.
const (
	myAccessDenied   = 1045
	myDatabaseDenied = 1044
)

func reachMySQL(ctx context.Context, dsn string, encrypted *tls.Config) error {
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		return refusal{err}
	}
	c.DBName = "" // it may have to be made
	if encrypted != nil {
		c.TLS = encrypted.Clone()
	}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return refusal{err}
	}
	conn, err := connector.Connect(ctx)
	if err == nil {
		return conn.Close()
	}
	if answer, ok := errors.AsType[*mysql.MySQLError](err); ok && (answer.Number == myAccessDenied || answer.Number == myDatabaseDenied) {
		return refusal{answer}
	}
	return err
}

// reachNATS connects as the driver will.
func reachNATS(e endpoint.Endpoint) error {
	servers, options, _ := strings.Cut(e.DSN, "?")
	opts := []nats.Option{nats.Timeout(tryTimeout)}
	if query, rest, _ := strings.Cut(options, ","); query != "" { // behind the first server
		servers = strings.TrimSuffix(servers+","+rest, ",")
		if values, err := url.ParseQuery(query); err == nil && values.Has("credsFile") {
			opts = append(opts, nats.UserCredentials(values.Get("credsFile")))
		}
	}
	if e.TLS != nil {
		opts = append(opts, nats.Secure(e.TLS.Clone()))
	}
	conn, err := nats.Connect(servers, opts...)
	if errors.Is(err, nats.ErrAuthorization) {
		return refusal{errors.New("NATS refuses the user or its password")}
	}
	if err != nil {
		return err
	}
	conn.Close()
	return nil
}

// DialEtcd is a client of the etcd at e, which connects when it is used.
func DialEtcd(ctx context.Context, e endpoint.Endpoint) (*clientv3.Client, error) {
	c, err := clientv3.New(clientv3.Config{Context: ctx, Endpoints: e.Servers, TLS: e.TLS, Logger: zap.NewNop(), MaxCallSendMsgSize: 16 << 20})
	if err != nil {
		return nil, fmt.Errorf("make a client of etcd: %w", err)
	}
	return c, nil
}

// reachEtcd reads a key of no meaning, for which etcd needs a majority of its members. The connection that is made before
// tells at once why there is none; etcd's client would try on without a word.
func reachEtcd(ctx context.Context, e endpoint.Endpoint) error {
	if err := dialAny(ctx, e); err != nil {
		return err
	}
	c, err := DialEtcd(ctx, e)
	if err != nil {
		return refusal{err}
	}
	defer c.Close()
	_, err = c.Get(ctx, "/registry/health", clientv3.WithCountOnly())
	return err
}

// dialAny connects to one of the servers, or says what was wrong with each.
func dialAny(ctx context.Context, e endpoint.Endpoint) error {
	var all []string
	for _, server := range e.Servers {
		scheme, host, _ := strings.Cut(server, "://")
		var dial interface {
			DialContext(ctx context.Context, network, address string) (net.Conn, error)
		} = &net.Dialer{Timeout: dialTimeout}
		if scheme == "https" {
			dial = &tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout}, Config: e.TLS}
		}
		conn, err := dial.DialContext(ctx, "tcp", host)
		if err == nil {
			return conn.Close()
		}
		all = append(all, err.Error())
	}
	return errors.New(strings.Join(all, "; "))
}
