// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package refresh validates and rotates refresh tokens, and detects stolen tokens when they are used again.
package refresh

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"time"
)

const (
	// Grace is how long a rotated token can still be exchanged for its replacement. This allows for clients that lose
	// the response, and for clients that send two requests at the same time. For example, kubectl runs exec plugins in
	// parallel.
	Grace = time.Minute
	// Pause is the minimum interval between rotations in a session. It limits the writes that a client can cause.
	Pause = time.Second
	// Len is the length of a token, in bytes.
	Len = len(prefix) + 2*sessionLen + 1 + 2*secretLen
)

const (
	prefix     = "refresh-" // lets secret scanners recognize tokens
	sessionLen = 16
	// secretLen is the length of a SHA-256 hash in base64url.
	secretLen = 43
)

// secret is the part of a token that clients cannot guess.
type secret [sha256.Size]byte

func newSecret() (s secret) {
	_, _ = rand.Read(s[:]) // never fails
	return s
}

func (s secret) hash() []byte {
	sum := sha256.Sum256(s[:])
	return sum[:]
}

// next returns the secret that replaces s. The result depends only on s and the salt, so the hub can return it again
// without storing it.
func (s secret) next(salt []byte) (next secret) {
	mac := hmac.New(sha256.New, s[:])
	mac.Write(salt)
	mac.Sum(next[:0])
	return next
}

// Token is a refresh token. All tokens of a session have the same family. The family is secret, so a token that has the
// right family was issued by the hub.
type Token struct {
	// Session is the ID of the session.
	Session        string
	family, secret secret
}

// String returns the token in its encoded form.
func (t Token) String() string {
	encode := base64.RawURLEncoding.EncodeToString
	return prefix + t.Session + ":" + encode(t.family[:]) + encode(t.secret[:])
}

// IsSession reports whether a string has the format of a session's ID.
func IsSession(s string) bool {
	id, err := hex.DecodeString(s)
	return err == nil && len(id) == sessionLen && s == strings.ToLower(s)
}

// Parse decodes a token that was encoded by String, and reports whether its format is valid.
func Parse(raw string) (t Token, ok bool) {
	if len(raw) != Len || !strings.HasPrefix(raw, prefix) {
		return Token{}, false
	}
	session, secrets, _ := strings.Cut(raw[len(prefix):], ":")
	if !IsSession(session) || len(secrets) != 2*secretLen {
		return Token{}, false
	}
	t.Session = session
	for into, text := range map[*secret]string{&t.family: secrets[:secretLen], &t.secret: secrets[secretLen:]} {
		one, err := base64.RawURLEncoding.Strict().DecodeString(text)
		if err != nil || len(one) != len(into) {
			return Token{}, false
		}
		copy(into[:], one)
	}
	return t, true
}

// State is the stored state of a session's tokens. The tokens cannot be derived from it.
type State struct {
	// Family, Present and Former are the SHA-256 hashes of the family, of the current secret, and of the previous
	// secret.
	Family  []byte `json:"family"`
	Present []byte `json:"present"`
	Former  []byte `json:"former,omitempty"`
	// Salt was used to derive the current secret from the previous one.
	Salt []byte `json:"salt,omitempty"`
	// Used is the time when the current secret was created.
	Used time.Time `json:"used"`
}

// New returns the first token of a session.
func New(session string, now time.Time) (Token, State) {
	t := Token{Session: session, family: newSecret(), secret: newSecret()}
	return t, State{Family: t.family.hash(), Present: t.secret.hash(), Used: now.UTC()}
}

// Given reports whether a token was ever issued for the session.
func (s State) Given(t Token) bool { return same(t.family.hash(), s.Family) }

// Outcome is the result of using a token.
type Outcome int

// Outcomes of using a token.
const (
	// Foreign means that the token was not issued for the session.
	Foreign Outcome = iota
	// Rotated means that the token was the current one. The caller must store the returned state before it returns the
	// new token to the client.
	Rotated
	// Repeated means that the previous token was used within Grace. The client gets the current token again. The state
	// does not change.
	Repeated
	// TooSoon means that the current token was used within Pause.
	TooSoon
	// Reused means that an older token was used. Two clients have tokens of the session, and one of them must have
	// stolen its token.
	Reused
)

// Use evaluates a token. It returns the token for the client and the state to store.
func (s State) Use(t Token, now time.Time) (Token, State, Outcome) {
	sum, age := t.secret.hash(), now.Sub(s.Used)
	switch {
	case !s.Given(t):
		return Token{}, s, Foreign
	case same(sum, s.Present) && len(s.Former) > 0 && age >= 0 && age < Pause:
		return Token{}, s, TooSoon
	case same(sum, s.Present):
		salt := newSecret()
		t.secret = t.secret.next(salt[:])
		return t, State{Family: s.Family, Present: t.secret.hash(), Former: sum, Salt: salt[:], Used: now.UTC()}, Rotated
	case same(sum, s.Former) && age <= Grace:
		t.secret = t.secret.next(s.Salt)
		return t, s, Repeated
	}
	return Token{}, s, Reused
}

// same compares two digests. An empty digest matches no digest.
func same(a, b []byte) bool {
	return len(b) > 0 && subtle.ConstantTimeCompare(a, b) == 1
}
