package join_test

import (
	"strings"
	"testing"

	bootstrap "k8s.io/cluster-bootstrap/token/util"

	"github.com/clusterd/clusterd/internal/join"
)

var caHash = strings.Repeat("0123456789abcdef", 4)

func TestParseReadsWhatStringWrites(t *testing.T) {
	want := join.Token{CAHash: caHash, ID: "abcdef", Secret: "0123456789abcdef"}
	got, err := join.Parse(" " + want.String() + "\n")
	if err != nil || got != want {
		t.Errorf("got %+v, error %v", got, err)
	}
}

// TestAnySecretIsABootstrapToken: a server's secret may be any text, but the API server knows tokens of one form only.
func TestAnySecretIsABootstrapToken(t *testing.T) {
	for _, secret := range []string{"x", "correct horse", "ABCDEF.0123456789abcdef", strings.Repeat("s", 300)} {
		a, b := join.Split(secret), join.Split(secret+"x")
		if !bootstrap.IsValidBootstrapToken(a.Bearer()) {
			t.Errorf("%q: not a bootstrap token", secret)
		}
		if a.ID == b.ID || a.Secret == b.Secret {
			t.Errorf("%q: another secret gives the same token", secret)
		}
		parsed, err := join.Parse("K10" + caHash + "::" + secret)
		if err != nil || parsed.Bearer() != a.Bearer() {
			t.Errorf("%q: parsed to another token, error %v", secret, err)
		}
	}
	if got := join.Split("abcdef.0123456789abcdef"); got.ID != "abcdef" || got.Secret != "0123456789abcdef" {
		t.Errorf("a bootstrap token was changed to %+v", got)
	}
}

func TestParseNamesTheRemedyAndNotTheToken(t *testing.T) {
	for text, word := range map[string]string{
		"":                                   "server/node-token",
		"sesame":                             "server/node-token",
		"K10abc::sesame":                     "mistyped",
		"K10" + caHash[1:] + "g::sesame":     "mistyped",
		"K10" + caHash + "::":                "cut off",
		caHash + "::sesame":                  "server/node-token",
		"K10" + caHash + ":sesame":           "server/node-token",
		strings.ToLower("K10"+caHash) + "::": "server/node-token",
	} {
		_, err := join.Parse(text)
		if err == nil || !strings.Contains(err.Error(), word) || strings.Contains(err.Error(), "sesame") || strings.Contains(err.Error(), caHash) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
