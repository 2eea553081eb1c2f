package keyring

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

const (
	// format is the record's; a record of another one is from a version that is not this one.
	format = 1
	// rounds make guessing a token that somebody has thought up slow. Random ones would need none.
	rounds = 600_000
	// maxRounds bounds what a record can make a server compute.
	maxRounds = 10 * rounds
	keyBytes  = 32
	saltBytes = 16
)

// What a data key is sealed by.
const (
	byToken     = "token"
	byAuthority = "authority"
)

// record is what the datastore holds: the contents sealed by a random key, and that key sealed once for each thing that
// opens it.
//
// Why not the contents sealed by the token itself: then another token would be another record, and a server that is away
// while the token is rotated could not read it any more. With a key of its own the contents stay as they are, and another
// token costs one seal. And why the authority beside the token: a server that has been let in once has the authorities on
// its disk, which is all that the record protects. So it opens the record whatever has become of its token.
type record struct {
	Format int    `json:"format"`
	Locks  locks  `json:"locks"`
	Sealed []byte `json:"sealed"`
}

type locks []lock

// lock is the data key, sealed.
type lock struct {
	By     string `json:"by"`
	Salt   []byte `json:"salt"`
	Rounds int    `json:"rounds,omitempty"`
	Sealed []byte `json:"sealed"`
}

// contents are what the servers of a cluster share.
type contents struct {
	// Files are those of pki.Dir.Lasting, by their names without a directory.
	Files map[string][]byte `json:"files"`
	// Token is the servers' own secret.
	Token string `json:"token"`
	// Settings are the options that have to be the same on all servers, as their users write them.
	Settings map[string]string `json:"settings"`
}

var errWrongKey = errors.New("it is sealed by another key")

// secrets are what a server may open a record by; the empty ones it does not have.
type secrets struct {
	token     string
	authority []byte // the key that signs the tokens of service accounts: the one of the authorities' files that never changes its form
}

func (s secrets) of(by string) []byte {
	if by == byToken {
		return []byte(s.token)
	}
	return s.authority
}

// key derives the key of a lock from the secret that opens it.
func (l lock) key(secret []byte) ([]byte, error) {
	switch l.By {
	case byToken:
		if l.Rounds < 1 || l.Rounds > maxRounds {
			return nil, fmt.Errorf("%d rounds are not from 1 to %d", l.Rounds, maxRounds)
		}
		return pbkdf2.Key(sha256.New, string(secret), l.Salt, l.Rounds, keyBytes)
	case byAuthority:
		return hkdf.Key(sha256.New, secret, l.Salt, "clusterd keyring", keyBytes)
	}
	return nil, errWrongKey // of a later version
}

// closeLock makes a lock that the secret opens.
func closeLock(by string, secret, dataKey []byte) (lock, error) {
	l := lock{By: by, Salt: make([]byte, saltBytes)}
	if by == byToken {
		l.Rounds = rounds
	}
	_, _ = rand.Read(l.Salt) // it never fails
	k, err := l.key(secret)
	if err != nil {
		return lock{}, err
	}
	l.Sealed, err = seal(k, dataKey, by)
	return l, err
}

// open finds a lock that one of the secrets opens, and says which it was. The authority is first: it costs no time.
func (all locks) open(s secrets) (dataKey []byte, by string, err error) {
	for _, by := range []string{byAuthority, byToken} {
		secret := s.of(by)
		for _, l := range all {
			if l.By != by || len(secret) == 0 {
				continue
			}
			k, err := l.key(secret)
			if err != nil {
				return nil, "", err
			}
			if dataKey, err = unseal(k, l.Sealed, by); err == nil {
				return dataKey, by, nil
			}
		}
	}
	return nil, "", errWrongKey
}

// with is the locks with that of a token, and no other token's.
func (all locks) with(token string, dataKey []byte) (locks, error) {
	l, err := closeLock(byToken, []byte(token), dataKey)
	kept := slices.DeleteFunc(slices.Clone(all), func(l lock) bool { return l.By == byToken })
	return append(kept, l), err
}

// newRecord seals contents with a new key, for the token and the authority in them.
func newRecord(c contents, authority []byte) (record, error) {
	dataKey := make([]byte, keyBytes)
	_, _ = rand.Read(dataKey)
	r := record{Format: format}
	own, err := closeLock(byAuthority, authority, dataKey)
	if err != nil {
		return r, err
	}
	if r.Locks, err = (locks{own}).with(c.Token, dataKey); err != nil {
		return r, err
	}
	return r, r.put(c, dataKey)
}

// put seals contents with the record's key.
func (r *record) put(c contents, dataKey []byte) error {
	plain, err := json.Marshal(c)
	if err != nil {
		return err
	}
	r.Sealed, err = seal(dataKey, plain, "contents")
	return err
}

// get opens the contents with the record's key.
func (r record) get(dataKey []byte) (c contents, err error) {
	plain, err := unseal(dataKey, r.Sealed, "contents")
	if err != nil {
		return c, err
	}
	return c, json.Unmarshal(plain, &c)
}

// decode reads a record.
func decode(data []byte) (record, error) {
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("it is damaged: %w", err)
	}
	if r.Format != format {
		return r, fmt.Errorf("it has the format %d and not %d: it is of another version of clusterd", r.Format, format)
	}
	return r, nil
}

// seal encrypts and authenticates data that is of a kind.
func seal(key, data []byte, kind string) ([]byte, error) {
	a, err := cipherOf(key)
	if err != nil {
		return nil, err
	}
	return a.Seal(nil, nil, data, []byte(kind)), nil
}

func unseal(key, data []byte, kind string) ([]byte, error) {
	a, err := cipherOf(key)
	if err != nil {
		return nil, err
	}
	plain, err := a.Open(nil, nil, data, []byte(kind))
	if err != nil {
		return nil, errWrongKey
	}
	return plain, nil
}

func cipherOf(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}
