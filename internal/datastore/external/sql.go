package external

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/clusterd/clusterd/internal/datastore/endpoint"
)

// SQL opens a database without touching it, for what the drivers do not do.
func SQL(e endpoint.Endpoint) (*sql.DB, error) {
	if e.Kind == endpoint.Postgres {
		c, err := pgx.ParseConfig(e.DSN)
		if err != nil {
			return nil, err
		}
		return stdlib.OpenDB(*c), nil
	}
	c, err := mysql.ParseDSN(e.DSN)
	if err != nil {
		return nil, err
	}
	if e.TLS != nil {
		c.TLS = e.TLS.Clone()
	}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

// nameType is what keys are in MySQL: bytes, in their order. kine makes them text, of which upper and lower case are the same.
const nameType = "varbinary"

// keepNames makes a MySQL's table tell keys apart as etcd does. One that a server of ours has used is so already.
func keepNames(ctx context.Context, e endpoint.Endpoint) error {
	if e.Kind != endpoint.MySQL {
		return nil
	}
	db, err := SQL(e)
	if err != nil {
		return err
	}
	defer db.Close()
	var is string
	err = db.QueryRowContext(ctx, "SELECT data_type FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'kine' AND column_name = 'name'").Scan(&is)
	if errors.Is(err, sql.ErrNoRows) || is == nameType {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at the table: %w", err)
	}
	if _, err := db.ExecContext(ctx, "ALTER TABLE kine MODIFY name "+nameType+"(630)"); err != nil {
		return fmt.Errorf("make keys bytes: %w", err)
	}
	return nil
}
