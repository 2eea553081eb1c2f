package registries_test

import (
	"strings"
	"testing"

	"github.com/clusterd/clusterd/agent/runtime/registries"
)

func TestParse(t *testing.T) {
	parsed, err := registries.Parse([]byte(`
mirrors:
  docker.io:
    endpoint: ["https://mirror.example", "plain.example:5000", "http://proxy.example/docker/v2/"]
    rewrite:
      "^rancher/(.*)": "prime/$1"
      "^.*$": "all"
  "*":
    endpoint: ["https://any.example"]
configs:
  mirror.example:
    auth: {username: me, password: secret}
    tls: {insecure_skip_verify: true}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []registries.Endpoint{
		{Scheme: "https", Host: "mirror.example", Path: "/v2"},
		{Scheme: "https", Host: "plain.example:5000", Path: "/v2"},
		{Scheme: "http", Host: "proxy.example", Path: "/docker/v2"},
	}
	mirror := parsed.Mirrors["docker.io"]
	for i, endpoint := range mirror.Endpoints {
		if endpoint != want[i] {
			t.Errorf("endpoint %d is %+v, want %+v", i, endpoint, want[i])
		}
	}
	if len(mirror.Rewrites) != 2 || mirror.Rewrites[0].Replace != "prime/$1" {
		t.Errorf("rewrites lost their order: %+v", mirror.Rewrites)
	}
	if host := parsed.Configs["mirror.example"]; host.Auth.Username != "me" || !host.TLS.InsecureSkipVerify {
		t.Errorf("host is %+v", host)
	}
}

func TestParseEmpty(t *testing.T) {
	if _, err := registries.Parse(nil); err != nil {
		t.Error(err)
	}
}

func TestParseRefuses(t *testing.T) {
	for name, row := range map[string]struct{ file, want string }{
		"unknown key":     {"mirrors:\n  a.example:\n    endpoints: [b.example]", "line 3"},
		"no YAML":         {"mirrors: [", "yaml"},
		"scheme":          {"mirrors: {a: {endpoint: ['ftp://b.example']}}", "scheme"},
		"no host":         {"mirrors: {a: {endpoint: ['https:///v2']}}", "no host"},
		"credentials":     {"mirrors: {a: {endpoint: ['https://me:secret@b.example']}}", "configs"},
		"pattern":         {"mirrors: {a: {rewrite: {'(': b}}}", "line 1"},
		"half a key pair": {"configs: {a: {tls: {cert_file: /x}}}", "key_file"},
		"bad auth":        {"configs: {a: {auth: {auth: secret}}}", "base64"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := registries.Parse([]byte(row.file))
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("error is %v, want one with %q", err, row.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("error %v has a secret", err)
			}
		})
	}
}
