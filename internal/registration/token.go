// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package registration decides who may join as a Cluster and who is its agent, and makes the manifest that an agent is
// installed with.
package registration

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"regexp"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
)

// tokenBytes is the entropy of a token that Drover makes: 256 bits.
const tokenBytes = 32

// tokenForm is what a token may look like, so that it can be in a URL path as it is. Its lower bound is what a chosen
// token needs to resist guessing.
var tokenForm = regexp.MustCompile(`^[A-Za-z0-9._~-]{32,256}$`)

// NewToken makes a random join token.
func NewToken() string {
	raw := make([]byte, tokenBytes)
	rand.Read(raw)
	return base64.RawURLEncoding.EncodeToString(raw)
}

// ValidToken reports whether a token has the form of a join token.
func ValidToken(token string) bool { return tokenForm.MatchString(token) }

// HashToken is what is stored and compared in a token's stead: SHA-256 in hex.
func HashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// Token is the present join token of a Cluster: the value, when it was first seen and whether it was used.
type Token struct {
	// Value of the token. It must not be printed.
	Value string
	// Created is when the hub made or first saw it.
	Created time.Time
	// TTL counted from Created.
	TTL time.Duration
	// Used reports whether an agent has joined with it.
	Used bool
	// Claimed is when an agent began to join with it, zero if none did, or if that is over.
	Claimed time.Time
}

// joinTime is how long a join may take from the claim of its token to the agent's identity.
const joinTime = time.Minute

// Joining reports whether an agent may be about to join with the token. Until that is over no other takes its place: it
// would be a token for a Cluster that has an agent.
func (t Token) Joining(now time.Time) bool { return now.Before(t.Claimed.Add(joinTime)) }

// Expires is when the token ends.
func (t Token) Expires() time.Time { return t.Created.Add(t.TTL) }

// Usable returns why the token cannot be used to join, or nil.
func (t Token) Usable(cluster string, now time.Time) *RefusalError {
	switch {
	case t.Used:
		return refuse(v1.ReasonTokenUsed, "the join token of %s was used already; delete its Secret %s for a new one", called(cluster), secretName(cluster))
	case !now.Before(t.Expires()):
		return refuse(v1.ReasonTokenExpired, "the join token of %s expired at %s; delete its Secret %s for a new one",
			called(cluster), t.Expires().UTC().Format(time.RFC3339), secretName(cluster))
	}
	return nil
}

// String keeps a token out of logs and errors.
func (t Token) String() string {
	return fmt.Sprintf("token(created %s, used %t)", t.Created.UTC().Format(time.RFC3339), t.Used)
}

// RefusalError says why a client may not join or connect. Its text is safe to show and says what to do.
type RefusalError struct {
	// Reason is one of the Reason constants of api/v1.
	Reason  string
	Message string
}

// Error returns the message.
func (e *RefusalError) Error() string { return e.Message }

func refuse(reason, format string, args ...any) *RefusalError {
	return &RefusalError{Reason: reason, Message: fmt.Sprintf(format, args...)}
}
