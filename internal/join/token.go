// Package join is what a joining node and the server have to agree on: the token, where the node asks first, and what it is
// told there.
//
// It promises that a token which Parse has accepted can be used, and that no error shows one.
package join

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"regexp"
	"strings"

	bootstrap "k8s.io/cluster-bootstrap/token/util"
)

// prefix begins tokens that carry the hash of the server's authority, as in k3s.
const prefix = "K10"

// Token is what a node shows to be let in, and what it knows the server by.
type Token struct {
	// CAHash is the SHA-256 hash, in hexadecimal digits, of the public key of the authority that the server's certificate
	// is signed by.
	CAHash string
	// ID and Secret are those of a bootstrap token of Kubernetes.
	ID, Secret string
}

// String is the token as a user hands it on.
func (t Token) String() string { return Whole(t.CAHash, t.Bearer()) }

// Whole is a secret as a user hands it on: behind the hash of the authority that it is for.
func Whole(caHash, secret string) string { return prefix + caHash + "::" + secret }

// Part takes a text that Whole has made apart; ok is whether it is one.
func Part(text string) (caHash, secret string, ok bool) {
	caHash, secret, both := strings.Cut(strings.TrimPrefix(text, prefix), "::")
	return caHash, secret, both && strings.HasPrefix(text, prefix) && hash.MatchString(caHash) && secret != ""
}

// Bearer is the part that authenticates to the API server.
func (t Token) Bearer() string { return bootstrap.TokenFromIDAndSecret(t.ID, t.Secret) }

var hash = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Parse reads a token as String writes it. Behind its hash there may also be the server's own secret.
func Parse(text string) (Token, error) {
	text = strings.TrimSpace(text)
	caHash, secret, both := strings.Cut(strings.TrimPrefix(text, prefix), "::")
	switch {
	case text == "":
		return Token{}, errors.New("is empty: copy it from server/node-token in the server's data directory, or from clusterd token create")
	case !strings.HasPrefix(text, prefix) || !both:
		return Token{}, errors.New("has no hash of the server's authority, K10...::, by which the server could be told from an impostor: copy the whole of server/node-token in the server's data directory, or what clusterd token create prints")
	case !hash.MatchString(caHash):
		return Token{}, errors.New("is mistyped or cut off: between K10 and :: there have to be 64 of the digits 0-9 and a-f")
	case secret == "":
		return Token{}, errors.New("is cut off: it ends at ::")
	}
	t := Split(secret)
	t.CAHash = caHash
	return t, nil
}

// Split makes the bootstrap token, without a hash, that a server's secret stands for: the secret itself if it has that form.
func Split(secret string) Token {
	if bootstrap.IsValidBootstrapToken(secret) {
		id, rest, _ := strings.Cut(secret, ".")
		return Token{ID: id, Secret: rest}
	}
	return Token{ID: derive(secret, "id", 6), Secret: derive(secret, "secret", 16)}
}

// derive makes n of the characters that bootstrap tokens consist of.
func derive(secret, use string, n int) string {
	const letters = "0123456789abcdefghijklmnopqrstuv" // 32: no character is more likely than another
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte("clusterd bootstrap token " + use))
	sum := mac.Sum(nil)
	out := make([]byte, n)
	for i := range out {
		out[i] = letters[sum[i]%32]
	}
	return string(out)
}

// HashOf is the CAHash of an authority.
func HashOf(ca *x509.Certificate) string {
	sum := sha256.Sum256(ca.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}
