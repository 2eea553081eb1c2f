package datastore_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/clusterd/clusterd/internal/datastore"
	"github.com/clusterd/clusterd/internal/datastore/endpoint"
	"github.com/clusterd/clusterd/internal/testkit/databases"
)

// testLoss kills the database under a store, twice, and wants it back without anything lost.
func testLoss(t *testing.T, server *databases.Server) {
	log := &lines{}
	c := attach(t, server.Endpoint, log)
	s := &state{}
	if err := s.follow(t.Context(), c, "/registry/x/"); err != nil {
		t.Fatal(err)
	}
	put := func(key string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := c.Kubernetes.OptimisticPut(ctx, "/registry/x/"+key, []byte(key), 0, kubernetes.PutOptions{})
		return err
	}
	for round := range 2 {
		before, after := fmt.Sprintf("before-%d", round), fmt.Sprintf("after-%d", round)
		if err := put(before); err != nil {
			t.Fatal(err)
		}
		server.Kill(t)
		if err := put("never"); err == nil {
			t.Fatal("a write without a database is acknowledged")
		}
		server.Start(t)
		await(t, func() string {
			if err := put(after); err != nil {
				return err.Error()
			}
			return ""
		})
		await(t, func() string {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.values["/registry/x/"+before] == "" || s.values["/registry/x/"+after] == "" || s.fault != "" {
				return fmt.Sprint("the watch has ", s.values, s.fault)
			}
			return ""
		})
	}
	text := log.String()
	if n := strings.Count(text, "does not answer"); n != 2 {
		t.Errorf("the loss is said %d times in two rounds:\n%s", n, text)
	}
	if n := strings.Count(text, "answers again"); n != 2 {
		t.Errorf("the return is said %d times in two rounds:\n%s", n, text)
	}
	if strings.Contains(text, databases.Password) {
		t.Errorf("the password is in the log:\n%s", text)
	}
}

// testWait starts a store before its database.
func testWait(t *testing.T, server *databases.Server) {
	server.Stop(t)
	log := &lines{}
	back := make(chan struct{})
	go func() {
		defer close(back)
		for !strings.Contains(log.String(), "waiting for the datastore") {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(3 * time.Second) // several attempts
		server.Start(t)
	}()
	defer func() { <-back }()
	attach(t, server.Endpoint, log)
	if n := strings.Count(log.String(), "waiting for the datastore"); n != 1 {
		t.Errorf("that it waits is said %d times:\n%s", n, log)
	}
	if strings.Contains(log.String(), databases.Password) {
		t.Errorf("the password is in the log:\n%s", log)
	}
}

// testRefusal has a wrong password: waiting is of no use.
func testRefusal(t *testing.T, server *databases.Server) {
	wrong := "another"
	e, err := endpoint.Parse(strings.Replace(server.Endpoint, databases.Password, wrong, 1), endpoint.Files{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	log := &lines{}
	err = datastore.NewElsewhere(e, slog.New(slog.NewTextHandler(log, nil))).Run(ctx, func() { t.Error("it is ready") })
	if err == nil || ctx.Err() != nil || strings.Contains(err.Error(), wrong) || !strings.Contains(err.Error(), e.String()) {
		t.Errorf("got %v, want an error that names the user; the log: %s", err, log)
	}
}
