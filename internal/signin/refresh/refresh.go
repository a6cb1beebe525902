// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package refresh decides what a refresh token is worth to its session: how it is rotated, and when one that comes
// again was stolen.
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
	// Grace is how long a token that was rotated gives the one that replaced it once more: to a client that lost the
	// response, and to one that asked twice at once. kubectl runs exec plugins in parallel.
	Grace = time.Minute
	// Pause is the least time between two rotations of a session, so that no client keeps the hub writing.
	Pause = time.Second
	// Len is that of a token, in bytes.
	Len = len(prefix) + 2*sessionLen + 1 + 2*secretLen
)

const (
	prefix     = "refresh-" // for tools that look for secrets in what is published
	sessionLen = 16
	// secretLen is that of a SHA-256 in base64url.
	secretLen = 43
)

// secret is a part of a token that no client can guess.
type secret [sha256.Size]byte

func newSecret() (s secret) {
	_, _ = rand.Read(s[:]) // never fails
	return s
}

func (s secret) hash() []byte {
	sum := sha256.Sum256(s[:])
	return sum[:]
}

// next is the secret that replaces s. Only who has s and the salt can tell it, so that it can be given twice and is
// stored nowhere.
func (s secret) next(salt []byte) (next secret) {
	mac := hmac.New(sha256.New, s[:])
	mac.Write(salt)
	mac.Sum(next[:0])
	return next
}

// Token is a refresh token. Its family is that of all tokens of a session: a token of the family was given by the hub,
// whatever its own secret.
type Token struct {
	// Session is the ID of the session.
	Session        string
	family, secret secret
}

// String returns the token as clients keep it.
func (t Token) String() string {
	encode := base64.RawURLEncoding.EncodeToString
	return prefix + t.Session + ":" + encode(t.family[:]) + encode(t.secret[:])
}

// Parse reads what String returned, and reports whether it has the form.
func Parse(raw string) (t Token, ok bool) {
	if len(raw) != Len || !strings.HasPrefix(raw, prefix) {
		return Token{}, false
	}
	session, secrets, _ := strings.Cut(raw[len(prefix):], ":")
	id, err := hex.DecodeString(session)
	if err != nil || len(id) != sessionLen || session != strings.ToLower(session) || len(secrets) != 2*secretLen {
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

// State is what a session keeps of its tokens. No token can be made of it.
type State struct {
	// Family, Present and Former are the SHA-256 of the family, of the secret that is valid, and of the one that it
	// replaced.
	Family  []byte `json:"family"`
	Present []byte `json:"present"`
	Former  []byte `json:"former,omitempty"`
	// Salt made the present secret of the former one.
	Salt []byte `json:"salt,omitempty"`
	// Used is when the present secret was made.
	Used time.Time `json:"used"`
}

// New makes the first token of a session.
func New(session string, now time.Time) (Token, State) {
	t := Token{Session: session, family: newSecret(), secret: newSecret()}
	return t, State{Family: t.family.hash(), Present: t.secret.hash(), Used: now.UTC()}
}

// Given reports whether a token is one that the session was given, now or before.
func (s State) Given(t Token) bool { return same(t.family.hash(), s.Family) }

// Outcome is what a token is worth.
type Outcome int

// The outcomes.
const (
	// Foreign is a token that the session was never given.
	Foreign Outcome = iota
	// Rotated is the present token. The state that Use returned is to be stored before the token that it returned is
	// given.
	Rotated
	// Repeated is the token before the present one, within Grace. The present one is given once more, and the state stays.
	Repeated
	// TooSoon is the present token within Pause.
	TooSoon
	// Reused is any other token of the session: two clients have its tokens, and one of them stole them.
	Reused
)

// Use decides what a token is worth at a time. It returns the token that is to be given, and the state to be stored.
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

// same compares digests. Of none nothing is the same.
func same(a, b []byte) bool {
	return len(b) > 0 && subtle.ConstantTimeCompare(a, b) == 1
}
