// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package token signs and verifies the tokens that the issuer gives to users.
//
// The hub and the agents of members share it: an agent that users reach without the hub verifies their tokens by the
// issuer's public keys alone.
package token

import (
	"crypto/ecdsa"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/drover-dev/drover/internal/signin/keys"
	"github.com/drover-dev/drover/internal/untrusted"
)

const (
	// Lifetime of a token for the hub.
	Lifetime = 10 * time.Minute
	// LongestDirect is the longest life of a token for direct access to a cluster.
	LongestDirect = 12 * time.Hour
	// skew is how much the clocks of replicas may differ.
	skew = 30 * time.Second
	// Max is how long a token may be, in bytes.
	Max = 16 << 10
)

// ErrToken means that a token is not one of this issuer that is valid now.
var ErrToken = errors.New("the token is not valid")

// Claims say who a user is.
type Claims struct {
	Issuer   string           `json:"iss"`
	Subject  string           `json:"sub"`
	Audience jwt.Audience     `json:"aud"`
	IssuedAt *jwt.NumericDate `json:"iat"`
	Expiry   *jwt.NumericDate `json:"exp"`
	Nonce    string           `json:"nonce,omitempty"`
	// Authenticated is when the user signed in, which a refresh does not change.
	Authenticated *jwt.NumericDate `json:"auth_time,omitempty"`
	// Session is the ID of the session that the token belongs to.
	Session string `json:"sid"`
	// UID is that of the User, so that one that was deleted and made again is another, or the ID of a provider's user.
	UID string `json:"uid"`
	// Groups are those of the user that bindings name, each with its provider.
	Groups []string `json:"groups,omitempty"`
}

// Sign makes a token of claims, from now on for Lifetime, or until their Expiry if that is earlier.
func Sign(key keys.Key, c Claims, now time.Time) (string, error) {
	return SignFor(Lifetime, key, c, now)
}

// SignFor makes a token of claims, from now on for a lifetime, or until their Expiry if that is earlier.
func SignFor(lifetime time.Duration, key keys.Key, c Claims, now time.Time) (string, error) {
	c.IssuedAt = jwt.NewNumericDate(now)
	if last := now.Add(lifetime); c.Expiry == nil || c.Expiry.Time().After(last) {
		c.Expiry = jwt.NewNumericDate(last)
	}
	options := (&jose.SignerOptions{}).WithType("JWT").WithHeader("kid", key.ID)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key.Private}, options)
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	return jwt.Signed(signer).Claims(c).Serialize()
}

// IssuedBy reports whether a token says of itself that an issuer made it. Only Verify reports whether that is true.
func IssuedBy(raw, issuer string) bool {
	parts := strings.SplitN(raw, ".", 4)
	if len(parts) != 3 { // a long one is not left to others either
		return false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return false
	}
	var c struct {
		Issuer string `json:"iss"`
	}
	return untrusted.JSON(payload, &c, untrusted.Small()) == nil && c.Issuer == issuer
}

// Keys are those that a token may be signed with.
type Keys interface {
	// Public returns the public key with an ID.
	Public(id string) (*ecdsa.PublicKey, bool)
}

// Verify returns the claims of a token that a key of the set has signed for one issuer and one audience, with the ID of
// the key. accepted returns the longest life of a token for an audience, 0 for an audience that is not accepted.
func Verify(raw string, set Keys, issuer string, accepted func(audience string) time.Duration) (c Claims, keyID string, err error) {
	if len(raw) > Max {
		return Claims{}, "", fmt.Errorf("%w: longer than %d bytes", ErrToken, Max)
	}
	parsed, err := jwt.ParseSigned(raw, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil || len(parsed.Headers) != 1 {
		return Claims{}, "", fmt.Errorf("%w: malformed, or signed by another algorithm than ES256", ErrToken)
	}
	header := parsed.Headers[0]
	public, known := set.Public(header.KeyID)
	switch {
	case !known:
		return Claims{}, "", fmt.Errorf("%w: its key is none of the issuer's", ErrToken)
	case header.ExtraHeaders[jose.HeaderType] != "JWT":
		return Claims{}, "", fmt.Errorf("%w: its type is not JWT", ErrToken)
	}
	if err := parsed.Claims(public, &c); err != nil {
		return Claims{}, "", fmt.Errorf("%w: its signature does not verify", ErrToken)
	}
	lifetime := time.Duration(0)
	if len(c.Audience) == 1 {
		lifetime = accepted(c.Audience[0])
	}
	switch {
	case c.Issuer != issuer || issuer == "":
		return Claims{}, "", fmt.Errorf("%w: it is of another issuer", ErrToken)
	case lifetime <= 0:
		return Claims{}, "", fmt.Errorf("%w: it is for another audience", ErrToken)
	case c.Subject == "", c.Session == "", c.UID == "", c.IssuedAt == nil, c.Expiry == nil:
		return Claims{}, "", fmt.Errorf("%w: sub, sid, uid, iat and exp are required", ErrToken)
	case c.Expiry.Time().Sub(c.IssuedAt.Time()) > lifetime:
		return Claims{}, "", fmt.Errorf("%w: it lives for longer than %s", ErrToken, lifetime)
	}
	return c, header.KeyID, nil
}

// Current returns an error if claims are not valid yet, or no longer.
func (c Claims) Current(now time.Time) error {
	switch {
	case now.Add(skew).Before(c.IssuedAt.Time()):
		return fmt.Errorf("%w: it is of the future; compare the clocks of the hub's replicas", ErrToken)
	case !now.Before(c.Expiry.Time()):
		return fmt.Errorf("%w: it has expired", ErrToken)
	}
	return nil
}
