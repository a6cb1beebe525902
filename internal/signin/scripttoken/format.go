// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package scripttoken

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
)

const (
	prefix = "token-"
	// The sizes of the parts of an ID, in bytes. An ID consists of the time in Unix seconds, random bytes, and a code
	// that proves that the hub created the ID.
	timeBytes, randomBytes, codeBytes = 4, 8, 8
	// idLength is the length of an ID, in hexadecimal digits.
	idLength = 2 * (timeBytes + randomBytes + codeBytes)
	// secretBytes is the length of a secret. 256 bits cannot be guessed, so it is safe to store an unsalted SHA-256
	// hash.
	secretBytes = 32
)

// Token is a script token. Its encoding is token-<id>:<secret>. The secret is never printed.
type Token struct {
	// ID is the ID of the token. It is not secret.
	ID  string
	sum [sha256.Size]byte
}

// Generate generates a token with a new secret. It also returns the encoded token for the user. The key authenticates
// the ID.
func Generate(key []byte, now time.Time) (t Token, raw string, err error) {
	id := make([]byte, timeBytes+randomBytes, timeBytes+randomBytes+codeBytes)
	binary.BigEndian.PutUint32(id, uint32(now.Unix()))
	_, _ = rand.Read(id[timeBytes:]) // never fails
	code, err := codeOf(key, id)
	if err != nil {
		return Token{}, "", err
	}
	secret := make([]byte, secretBytes)
	_, _ = rand.Read(secret)
	raw = prefix + hex.EncodeToString(append(id, code...)) + ":" + base64.RawURLEncoding.EncodeToString(secret)
	t, ok := Parse(raw)
	if !ok {
		return Token{}, "", fmt.Errorf("make token: %d bytes are not the form of one", len(raw)) // cannot happen
	}
	return t, raw, nil
}

// Is reports whether a string looks like a script token, even if its secret was truncated or modified. Such a string
// must not be sent to any other service.
func Is(raw string) bool {
	rest, ok := strings.CutPrefix(raw, prefix)
	return ok && len(rest) > idLength && IsID(rest[:idLength]) && rest[idLength] == ':'
}

// IsID reports whether a string has the format of an ID.
func IsID(s string) bool {
	if len(s) != idLength {
		return false
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// Parse decodes a token. It accepts only one encoding of each token.
func Parse(raw string) (Token, bool) {
	if !Is(raw) {
		return Token{}, false
	}
	id, secret := raw[len(prefix):len(prefix)+idLength], raw[len(prefix)+idLength+1:]
	// The decoder would ignore line breaks.
	if len(secret) != base64.RawURLEncoding.EncodedLen(secretBytes) || strings.ContainsAny(secret, "\r\n") {
		return Token{}, false
	}
	if _, err := base64.RawURLEncoding.Strict().DecodeString(secret); err != nil {
		return Token{}, false
	}
	return Token{ID: id, sum: sha256.Sum256([]byte(raw))}, true
}

// Hash returns the SHA-256 hash of the whole token in hexadecimal. Only this hash is stored. It covers the ID, so the
// secret is not valid with a different ID.
func (t Token) Hash() []byte { return hex.AppendEncode(nil, t.sum[:]) }

// Matches reports whether a token has the given hash. The comparison takes constant time.
func (t Token) Matches(hash []byte) bool { return subtle.ConstantTimeCompare(t.Hash(), hash) == 1 }

// Made returns the creation time of the token. The time is part of the ID.
func (t Token) Made() time.Time {
	raw, err := hex.DecodeString(t.ID[:2*timeBytes])
	if err != nil { // Parse has validated the ID
		return time.Time{}
	}
	return time.Unix(int64(binary.BigEndian.Uint32(raw)), 0)
}

// Ours reports whether the hub created the token's ID with one of the keys. It does not check the secret.
func (t Token) Ours(keys ...[]byte) bool {
	raw, err := hex.DecodeString(t.ID)
	if err != nil {
		return false
	}
	id, code := raw[:timeBytes+randomBytes], raw[timeBytes+randomBytes:]
	for _, key := range keys {
		if want, err := codeOf(key, id); err == nil && hmac.Equal(want, code) {
			return true
		}
	}
	return false
}

// codeOf returns the code that authenticates an ID.
func codeOf(key, id []byte) ([]byte, error) {
	derived, err := hkdf.Key(sha256.New, key, nil, "drover sign-in: IDs of tokens", sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("derive key of IDs: %w", err)
	}
	mac := hmac.New(sha256.New, derived)
	mac.Write(id)
	return mac.Sum(nil)[:codeBytes], nil
}
