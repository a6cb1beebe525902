// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package registration decides which agents can join as a Cluster, authenticates agents, and creates the manifest that
// installs an agent.
package registration

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"regexp"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// tokenBytes is the entropy of the tokens that Drover creates: 256 bits.
const tokenBytes = 32

// tokenForm is the accepted format of a token. A token in this format does not have to be escaped in a URL path. The
// minimum length ensures that even a token that a user has chosen is hard to guess.
var tokenForm = regexp.MustCompile(`^[A-Za-z0-9._~-]{32,256}$`)

// NewToken returns a random join token.
func NewToken() string {
	raw := make([]byte, tokenBytes)
	rand.Read(raw)
	return base64.RawURLEncoding.EncodeToString(raw)
}

// ValidToken reports whether a token has the format of a join token.
func ValidToken(token string) bool { return tokenForm.MatchString(token) }

// HashToken returns the SHA-256 digest of a token in hex. The digest is stored and compared instead of the token.
func HashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// Token is the current join token of a Cluster.
type Token struct {
	// Value is the token. It must not be printed.
	Value string
	// Created is the time when the hub created the token, or first read the user's token.
	Created time.Time
	// TTL is how long the token is valid, counted from Created.
	TTL time.Duration
	// Used is true if an agent has joined with the token.
	Used bool
	// Claimed is the time when an agent started to join with the token. It is zero if no join is in progress.
	Claimed time.Time
}

// Announcement returns the text of an event about a new token for a Cluster or Host.
func (t Token) Announcement(owner client.Object) string {
	return fmt.Sprintf("Created a join token that expires at %s; see Secret %s",
		t.Expires().UTC().Format("2006-01-02 15:04 MST"), RegistrationSecret(memberName(owner)).Name)
}

// joinTime is how long a join may take, from claiming the token to writing the agent's identity.
const joinTime = time.Minute

// Joining reports whether an agent may be joining with the token. During a join, the token is not replaced.
func (t Token) Joining(now time.Time) bool { return now.Before(t.Claimed.Add(joinTime)) }

// Expires returns the time when the token expires.
func (t Token) Expires() time.Time { return t.Created.Add(t.TTL) }

// Usable returns nil if the token can be used to join. Otherwise, it returns the reason why the token cannot be used.
func (t Token) Usable(cluster string, now time.Time) *RefusalError {
	switch {
	case t.Used:
		return refuse(v1.ReasonTokenUsed, "the join token of %s was already used; delete its Secret %s for a new one",
			called(cluster), secretName(cluster))
	case !now.Before(t.Expires()):
		return refuse(v1.ReasonTokenExpired, "the join token of %s expired at %s; delete its Secret %s for a new one",
			called(cluster), t.Expires().UTC().Format(time.RFC3339), secretName(cluster))
	}
	return nil
}

// String returns a placeholder that keeps the token out of logs and errors.
func (t Token) String() string {
	return fmt.Sprintf("token(created %s, used %t)", t.Created.UTC().Format(time.RFC3339), t.Used)
}

// RefusalError explains why a client is not allowed to join or connect, and what to do about it. The message contains
// no secrets.
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
