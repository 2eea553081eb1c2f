package external

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"unsafe"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/k3s-io/kine/pkg/logstructured"
	"github.com/k3s-io/kine/pkg/server"
)

// table is the log of revisions in a database with SQL. It writes in place of kine's own LogStructured, which does not tell
// a failure from a condition that does not hold, takes a creation that failed for a success, and answers a creation of what
// was deleted before with a revision that is not its own.
type table struct{ log logstructured.Log }

// tableOf finds the log in what kine's drivers return.
func tableOf(b server.Backend) (*table, error) {
	structured, ok := b.(*logstructured.LogStructured)
	if !ok {
		return nil, fmt.Errorf("the driver is a %T", b)
	}
	field := reflect.ValueOf(structured).Elem().FieldByName("log")
	if !field.IsValid() {
		return nil, errors.New("the driver has no log")
	}
	log, ok := reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem().Interface().(logstructured.Log)
	if !ok {
		return nil, fmt.Errorf("the driver's log is a %s", field.Type())
	}
	return &table{log}, nil
}

// attempts bounds how often a write is made that others were in the way of.
const attempts = 10

var errBusy = errors.New("others were in the way of a write, again and again")

// append adds a revision, or returns 0 if the key is not at the one that it replaces.
func (t *table) append(ctx context.Context, event *server.Event) (int64, error) {
	for range attempts {
		at, err := t.log.Append(ctx, event)
		switch {
		case errors.Is(err, server.ErrKeyExists):
			return 0, nil
		case inTheWay(err):
			continue
		}
		return at, err
	}
	return 0, errBusy
}

// inTheWay is whether the database has undone a transaction because of another one.
func inTheWay(err error) bool {
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return e.Number == 1213 || e.Number == 1020 // deadlock, record has changed
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code == "40001" || e.Code == "40P01" // serialization failure, deadlock
	}
	return false
}

// latest is the last version of a key, which may be its deletion.
func (t *table) latest(ctx context.Context, key string) (at int64, event *server.Event, err error) {
	batch, err := t.log.List(ctx, key, "", 1, 0, true, false)
	if err != nil || len(batch.Events) == 0 {
		return batch.CurrentRev, nil, err
	}
	return batch.CurrentRev, batch.Events[0], nil
}

// Create makes key. When it exists, the error is server.ErrKeyExists.
func (t *table) Create(ctx context.Context, key string, value []byte, lease int64) (int64, error) {
	event := &server.Event{Create: true, KV: &server.KeyValue{Key: key, Value: value, Lease: lease}, PrevKV: &server.KeyValue{}}
	for range attempts {
		if at, err := t.append(ctx, event); at != 0 || err != nil {
			return at, err
		}
		_, now, err := t.latest(ctx, key)
		if err != nil {
			return 0, err
		}
		if now != nil && !now.Delete {
			return 0, server.ErrKeyExists
		}
		if now != nil {
			event.PrevKV.ModRevision = now.KV.ModRevision
		} else {
			event.PrevKV.ModRevision = 0
		}
	}
	return 0, errBusy
}

// Update changes key if it is still at revision.
func (t *table) Update(ctx context.Context, key string, value []byte, revision, lease int64) (int64, *server.KeyValue, bool, error) {
	return t.replace(ctx, key, revision, &server.Event{KV: &server.KeyValue{Key: key, Value: value, Lease: lease}})
}

// Delete removes key if it is still at revision.
func (t *table) Delete(ctx context.Context, key string, revision int64) (int64, *server.KeyValue, bool, error) {
	return t.replace(ctx, key, revision, &server.Event{Delete: true, KV: &server.KeyValue{Key: key}})
}

// replace adds a revision of a key that is at revision, or tells what it is.
func (t *table) replace(ctx context.Context, key string, revision int64, event *server.Event) (int64, *server.KeyValue, bool, error) {
	event.PrevKV = &server.KeyValue{ModRevision: revision}
	for range attempts {
		if at, err := t.append(ctx, event); at != 0 || err != nil {
			return at, nil, at != 0, err
		}
		at, now, err := t.latest(ctx, key)
		switch {
		case err != nil || now == nil || now.Delete:
			return at, nil, false, err
		case now.KV.ModRevision != revision:
			return at, now.KV, false, nil
		}
	}
	return 0, nil, false, errBusy
}
