package keyring_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/clusterd/clusterd/server/keyring"
)

// TestRotation changes the token on one server while the other is away.
func TestRotation(t *testing.T) {
	s, first, second := &memory{}, newMachine(t), newMachine(t)
	var old string
	err := start(t, first.config(s), func() {
		old = first.read(t, "server-token")
		if err := start(t, with(second.config(s), old), nothing); err != nil {
			t.Error(err)
		}
		first.rotate(t, "another secret")
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := start(t, second.config(s), nothing); err != nil {
		t.Errorf("a server that was away: %v", err)
	}
	same(t, first, second)
	if err := start(t, with(newMachine(t).config(s), old), nothing); err == nil {
		t.Error("the old token still opens it")
	}
	third := newMachine(t)
	if err := start(t, with(third.config(s), first.read(t, "server-token")), nothing); err != nil {
		t.Errorf("the new token: %v", err)
	}
	same(t, first, third)
}

// rotate does what clusterd token rotate does, and waits until the server has noticed.
func (m machine) rotate(t *testing.T, secret string) {
	t.Helper()
	if err := os.WriteFile(m.file("rotated"), []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(m.file("rotated"), m.file("token")); err != nil {
		t.Fatal(err)
	}
	m.lets(t, secret)
}

// lets waits until the machine's file says that further servers are let in by this secret.
func (m machine) lets(t *testing.T, secret string) {
	t.Helper()
	for deadline := time.Now().Add(patience); !strings.HasSuffix(m.read(t, "server-token"), "::"+secret); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("nobody has noticed the new token: it is %s", m.read(t, "server-token"))
		}
	}
}

// TestRotationIsFollowed changes the token now on one and now on the other of two servers that run.
func TestRotationIsFollowed(t *testing.T) {
	s, first, second := &memory{}, newMachine(t), newMachine(t)
	err := start(t, first.config(s), func() {
		joining := with(second.config(s), first.read(t, "server-token"))
		joining.Joins = true
		err := start(t, joining, nothing)
		if err != nil {
			t.Fatal(err)
		}
		err = start(t, joining, func() {
			first.rotate(t, "second secret")
			second.lets(t, "second secret")
			second.rotate(t, "third secret")
			first.lets(t, "third secret")
			s.endWatches()
			second.rotate(t, "fourth secret")
			first.lets(t, "fourth secret")
			if err := os.WriteFile(first.file("token"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			second.rotate(t, "fifth secret")
			first.lets(t, "fifth secret")
		})
		if err == nil {
			err = start(t, joining, nothing) // with what has let it in once, as its configuration may keep it
		}
		if err != nil {
			t.Error(err)
		}
		same(t, first, second)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestFurtherServerIsFirst has a datastore that was emptied, and of the servers one start first that has joined by a token
// which was rotated since.
func TestFurtherServerIsFirst(t *testing.T) {
	s, first, second := &memory{}, newMachine(t), newMachine(t)
	var joining keyring.Config
	err := start(t, first.config(s), func() {
		joining = with(second.config(s), first.read(t, "server-token"))
		joining.Joins = true
		if err := start(t, joining, func() { first.rotate(t, "new secret"); second.lets(t, "new secret") }); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	empty := &memory{}
	joining.Open = second.config(empty).Open
	for _, c := range []keyring.Config{joining, first.config(empty)} {
		if err := start(t, c, nothing); err != nil {
			t.Error(err)
		}
	}
	second.lets(t, "new secret")
	same(t, first, second)
}

// TestTokenInConfiguration changes a token that users set themselves.
func TestTokenInConfiguration(t *testing.T) {
	s, first, second := &memory{}, newMachine(t), newMachine(t)
	for _, step := range []struct {
		m     machine
		token string
		good  bool
	}{
		{first, "one", true}, {second, "one", true}, {first, "two", true}, // changed on the first
		{second, "one", false}, // and not yet on the second
		{second, "two", true}, {first, "two", true},
	} {
		err := start(t, with(step.m.config(s), step.token), nothing)
		if (err == nil) != step.good || err != nil && !strings.Contains(err.Error(), "--token") {
			t.Errorf("%s: %v", step.token, err)
		}
	}
	same(t, first, second)
}
