package endpoint_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/clusterd/clusterd/internal/datastore/endpoint"
)

const secret = "hunter2"

func TestParse(t *testing.T) {
	for _, row := range []struct {
		text  string
		kind  endpoint.Kind
		shown string
	}{
		{"", endpoint.SQLite, "sqlite://"},
		{"sqlite:///a/b.db", endpoint.SQLite, "sqlite:///a/b.db"},
		{"postgres://u:hunter2@h:5432/db?sslmode=disable", endpoint.Postgres, "postgres://h:5432/db"},
		{"postgresql://u:hunter2@h", endpoint.Postgres, "postgres://h/kubernetes"},
		{"postgres://u:hunter2@/db?host=/run/pg", endpoint.Postgres, "postgres:///run/pg/db"},
		{"mysql://u:hunter2@tcp(h:3306)/db", endpoint.MySQL, "mysql://tcp(h:3306)/db"},
		{"mysql://u:hunter2@unix(/run/my.sock)/", endpoint.MySQL, "mysql://unix(/run/my.sock)/kubernetes"},
		{"nats://u:hunter2@a:4222,nats://b:4222", endpoint.NATS, "nats://a:4222,b:4222"},
		{"https://a:2379,https://b:2379/", endpoint.Etcd, "https://a:2379,https://b:2379"},
	} {
		e, err := endpoint.Parse(row.text, endpoint.Files{})
		if err != nil || e.Kind != row.kind || e.String() != row.shown {
			t.Errorf("%s: %s %s, %v; want %s %s", row.text, e.Kind, e, err, row.kind, row.shown)
		}
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
			if text := fmt.Sprintf(verb, e); strings.Contains(text, secret) {
				t.Errorf("%s shows the password: %s", verb, text)
			}
		}
	}
}

func TestParseRefuses(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing")
	for _, row := range []struct {
		text  string
		files endpoint.Files
		wants []string
	}{
		{"/var/lib/state.db", endpoint.Files{}, []string{"no URL", "postgres://"}},
		{"oracle://u:hunter2@h/db", endpoint.Files{}, []string{"oracle://", "postgres://"}},
		{"sqlite://state.db", endpoint.Files{}, []string{"not absolute"}},
		{"postgres://u:hunter2@h:port/db", endpoint.Files{}, []string{"PostgreSQL"}},
		{"postgres://u:hunter2%@h/db", endpoint.Files{}, []string{"PostgreSQL"}},
		{"postgres://u:hunter2@h/db?sslmode=maybe", endpoint.Files{}, []string{"PostgreSQL"}},
		{"mysql://u:hunter2@h:3306/db", endpoint.Files{}, []string{"MySQL", "tcp("}},
		{"nats://a,http://u:hunter2@b", endpoint.Files{}, []string{"NATS"}},
		{"https://a", endpoint.Files{}, []string{"etcd", ":2379"}},
		{"https://u:hunter2@a:2379", endpoint.Files{}, []string{"certificate"}},
		{"https://a:2379,postgres://u:hunter2@b", endpoint.Files{}, []string{"etcd"}},
		{"https://a:2379", endpoint.Files{CA: missing}, []string{missing, "read CA"}},
		{"https://a:2379", endpoint.Files{CA: text}, []string{text, "no certificate"}},
		{"https://a:2379", endpoint.Files{Cert: text}, []string{"belong together"}},
		{"https://a:2379", endpoint.Files{Cert: text, Key: missing}, []string{missing}},
	} {
		e, err := endpoint.Parse(row.text, row.files)
		if err == nil {
			t.Errorf("%s is taken for %s", row.text, e)
			continue
		}
		if strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", row.text, err)
		}
		if i := slices.IndexFunc(row.wants, func(w string) bool { return !strings.Contains(err.Error(), w) }); i >= 0 {
			t.Errorf("%s: %q is not in: %v", row.text, row.wants[i], err)
		}
	}
}
