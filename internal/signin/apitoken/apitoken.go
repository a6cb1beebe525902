// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apitoken has the form of the tokens that users make for scripts, token-<id>:<secret>.
package apitoken

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
	// The bytes of an ID: when it was made in Unix seconds, random ones, and a code that proves that the hub made it.
	timeBytes, randomBytes, codeBytes = 4, 8, 8
	// IDLength is how long an ID is, in hexadecimal digits.
	IDLength = 2 * (timeBytes + randomBytes + codeBytes)
	// secretBytes are 256 bits, which cannot be guessed: so a plain SHA-256 is enough to keep.
	secretBytes = 32
)

// Token is one with its secret, which nothing prints.
type Token struct {
	// ID is no secret.
	ID  string
	sum [sha256.Size]byte
}

// New makes a token with a new secret, and returns it as its user sends it too. The key is for its ID.
func New(key []byte, now time.Time) (t Token, raw string, err error) {
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

// Is reports whether a text claims to be such a token, so that it must not be sent to anyone else: also one with a cut or changed secret.
func Is(raw string) bool {
	rest, ok := strings.CutPrefix(raw, prefix)
	return ok && len(rest) > IDLength && IsID(rest[:IDLength]) && rest[IDLength] == ':'
}

// IsID reports whether a text has the form of an ID.
func IsID(s string) bool {
	if len(s) != IDLength {
		return false
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// Parse reads a token as its user sends it. There is one way to write each.
func Parse(raw string) (Token, bool) {
	if !Is(raw) {
		return Token{}, false
	}
	id, secret := raw[len(prefix):len(prefix)+IDLength], raw[len(prefix)+IDLength+1:]
	if len(secret) != base64.RawURLEncoding.EncodedLen(secretBytes) || strings.ContainsAny(secret, "\r\n") { // which the decoder would leave out
		return Token{}, false
	}
	if _, err := base64.RawURLEncoding.Strict().DecodeString(secret); err != nil {
		return Token{}, false
	}
	return Token{ID: id, sum: sha256.Sum256([]byte(raw))}, true
}

// Hash is what is kept of a token, in hexadecimal: the SHA-256 of all of it, so that it is worth nothing under another ID.
func (t Token) Hash() []byte { return hex.AppendEncode(nil, t.sum[:]) }

// Matches reports whether a token is the one that a hash is kept of, in a time that does not depend on what was kept.
func (t Token) Matches(hash []byte) bool { return subtle.ConstantTimeCompare(t.Hash(), hash) == 1 }

// Made is when the ID says that it was made.
func (t Token) Made() time.Time {
	raw, err := hex.DecodeString(t.ID[:2*timeBytes])
	if err != nil { // Parse has looked
		return time.Time{}
	}
	return time.Unix(int64(binary.BigEndian.Uint32(raw)), 0)
}

// Ours reports whether the hub made the ID of a token, by one of the keys that it may have been made with. It says nothing of the secret.
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

// codeOf is the authentication code of an ID.
func codeOf(key, id []byte) ([]byte, error) {
	derived, err := hkdf.Key(sha256.New, key, nil, "drover sign-in: IDs of tokens", sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("derive key of IDs: %w", err)
	}
	mac := hmac.New(sha256.New, derived)
	mac.Write(id)
	return mac.Sum(nil)[:codeBytes], nil
}
