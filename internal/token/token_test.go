package token_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clusterd/clusterd/internal/token"
)

func ensure(t *testing.T, path, given string) string {
	t.Helper()
	if err := token.Ensure(path, given); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, error %v", info.Mode(), err)
	}
	return strings.TrimSpace(string(b))
}

func TestEnsure(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	first := ensure(t, path, "")
	if len(first) < 26 {
		t.Fatalf("token %q is too short", first)
	}
	if again := ensure(t, path, ""); again != first {
		t.Error("a second start made another token")
	}
	if given := ensure(t, path, "secret"); given != "secret" {
		t.Errorf("the given token is not kept: %q", given)
	}
	if kept := ensure(t, path, ""); kept != "secret" {
		t.Errorf("the given token is gone: %q", kept)
	}
}

func TestEmptyFileAfterPowerCut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := ensure(t, path, ""); got == "" {
		t.Error("the empty token was kept")
	}
}
