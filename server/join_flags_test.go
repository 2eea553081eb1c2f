package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clusterd/clusterd/internal/join"
)

const elsewhere = "--datastore-endpoint=postgres://u:p@192.0.2.9:5432/c"

// TestTokenWithHash reads the token of a further server, and leaves other secrets as they are.
func TestTokenWithHash(t *testing.T) {
	hash := strings.Repeat("0123456789abcdef", 4)
	for text, want := range map[string][2]string{
		join.Whole(hash, "secret"): {hash, "secret"},
		"secret":                   {"", "secret"},
		"K10":                      {"", "K10"},
		"K10abc::secret":           {"", "K10abc::secret"},
		"":                         {"", ""},
	} {
		cfg, err := parse(t, "--token="+text)
		if err != nil || cfg.CAHash != want[0] || cfg.Token != want[1] {
			t.Errorf("%q: got %q and %q, error %v", text, cfg.CAHash, cfg.Token, err)
		}
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		switch cfg, err := parse(t, "--token-file="+file); {
		case text == "" && (err == nil || !strings.Contains(err.Error(), "is empty")):
			t.Errorf("an empty file: %v", err)
		case text != "" && (err != nil || cfg.CAHash != want[0] || cfg.Token != want[1]):
			t.Errorf("%q in a file: got %q and %q, error %v", text, cfg.CAHash, cfg.Token, err)
		}
	}
}

func TestJoining(t *testing.T) {
	whole := "--token=" + join.Whole(strings.Repeat("0", 64), "sesame")
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	member := t.TempDir() // of a server that was let in before
	if err := os.Mkdir(filepath.Join(member, "server"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(member, "server", "token"), []byte("sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		args []string
		want string
	}{
		{[]string{"--join=https://h", elsewhere, whole}, ""},
		{[]string{"--join=https://h", elsewhere}, ""}, // it has joined before
		{[]string{elsewhere, "--token=sesame"}, ""},
		{[]string{"--join=http://h", elsewhere, whole}, "is not the URL of a server"},
		{[]string{"--join=https://h", whole}, "give the --datastore-endpoint that the others have"},
		{[]string{"--join=https://h", "--datastore-endpoint=sqlite://", whole}, "a file is for one server"},
		{[]string{"--join=https://h", elsewhere, "--token=sesame"}, "--token: has no hash of the servers' authority"},
		{[]string{"--join=https://h", elsewhere, "--token-file=" + file}, "--token-file: has no hash of the servers' authority"},
		{[]string{elsewhere, whole, "--token-file=" + file}, "--token-file: there is a token already"},
		{[]string{elsewhere, "--token-file=" + file + "-nothing"}, "--token-file: " + file + "-nothing does not exist"},
		{[]string{elsewhere, "--token-file=" + file + "-nothing", "--data-dir=" + member}, ""},
		{[]string{elsewhere, "--token-file=/proc/self", "--data-dir=" + member}, "--token-file: "},
	} {
		cfg, err := parse(t, row.args...)
		switch {
		case row.want == "" && (err != nil || cfg.Join != "" && cfg.Join != "https://h:6443"):
			t.Errorf("%q: joins %q, error %v", row.args, cfg.Join, err)
		case row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want) || strings.Contains(err.Error(), "sesame")):
			t.Errorf("%q: %v", row.args, err)
		}
	}
}
