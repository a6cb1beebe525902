// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package token signs and verifies the tokens that the issuer gives to users.
//
// The hub and the agents of members share this package. An agent that users reach without the hub verifies their tokens
// with only the issuer's public keys.
package token

import (
	"crypto/ecdsa"
	"errors"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/drover-dev/drover/internal/signin/keys"
	"github.com/drover-dev/drover/internal/untrusted"
)

const (
	// Lifetime is the lifetime of a token for the hub.
	Lifetime = 10 * time.Minute
	// LongestDirect is the maximum lifetime of a token for direct access to a cluster.
	LongestDirect = 12 * time.Hour
	// skew is the maximum difference between the clocks of replicas.
	skew = 30 * time.Second
	// Max is the maximum length of a token, in bytes.
	Max = 16 << 10
)

// ErrToken means that a token was not issued by this issuer or is not valid at present.
var ErrToken = errors.New("the token is not valid")

// Claims identify a user.
type Claims struct {
	Issuer   string           `json:"iss"`
	Subject  string           `json:"sub"`
	Audience jwt.Audience     `json:"aud"`
	IssuedAt *jwt.NumericDate `json:"iat"`
	Expiry   *jwt.NumericDate `json:"exp"`
	Nonce    string           `json:"nonce,omitempty"`
	// Authenticated is the time when the user signed in. A refresh does not change it.
	Authenticated *jwt.NumericDate `json:"auth_time,omitempty"`
	// Session is the ID of the session that the token belongs to.
	Session string `json:"sid"`
	// UID is the UID of the User, which differs after a User has been deleted and recreated, or the ID of a provider's
	// user.
	UID string `json:"uid"`
	// Groups are the user's groups that are named in bindings, each with the prefix of its provider.
	Groups []string `json:"groups,omitempty"`
}

// Sign returns a token with the claims. It is valid for Lifetime from now on, or until the claims' Expiry if that is
// earlier.
func Sign(key keys.Key, c Claims, now time.Time) (string, error) {
	return SignFor(Lifetime, key, c, now)
}

// SignFor returns a token with the claims. It is valid for a lifetime from now on, or until the claims' Expiry if that
// is earlier.
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

// IssuedBy reports whether a token claims to be from an issuer. Only Verify checks the claim.
func IssuedBy(raw, issuer string) bool {
	var c struct {
		Issuer string `json:"iss"`
	}
	return untrusted.Claims(raw, &c, untrusted.Small()) == nil && c.Issuer == issuer
}

// Keys provides the public keys that verify tokens.
type Keys interface {
	// Public returns the public key with the given ID.
	Public(id string) (*ecdsa.PublicKey, bool)
}

// Verify returns the claims of a token that was signed with one of the keys for the issuer and for one accepted
// audience. It also returns the ID of the key. The function accepted returns the maximum lifetime of a token for an
// audience, or 0 if the audience is not accepted.
func Verify(raw string, set Keys, issuer string, accepted func(audience string) time.Duration) (c Claims, keyID string,
	err error) {
	if len(raw) > Max {
		return Claims{}, "", fmt.Errorf("%w: longer than %d bytes", ErrToken, Max)
	}
	parsed, err := jwt.ParseSigned(raw, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil || len(parsed.Headers) != 1 {
		return Claims{}, "", fmt.Errorf("%w: malformed, or not signed with ES256", ErrToken)
	}
	header := parsed.Headers[0]
	public, known := set.Public(header.KeyID)
	switch {
	case !known:
		return Claims{}, "", fmt.Errorf("%w: its key is not one of the issuer's keys", ErrToken)
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
		return Claims{}, "", fmt.Errorf("%w: it comes from another issuer", ErrToken)
	case lifetime <= 0:
		return Claims{}, "", fmt.Errorf("%w: it is for another audience", ErrToken)
	case c.Subject == "", c.Session == "", c.UID == "", c.IssuedAt == nil, c.Expiry == nil:
		return Claims{}, "", fmt.Errorf("%w: sub, sid, uid, iat and exp are required", ErrToken)
	case c.Expiry.Time().Sub(c.IssuedAt.Time()) > lifetime:
		return Claims{}, "", fmt.Errorf("%w: it lives for longer than %s", ErrToken, lifetime)
	}
	return c, header.KeyID, nil
}

// Current returns an error if claims are not yet valid or have expired.
func (c Claims) Current(now time.Time) error {
	switch {
	case now.Add(skew).Before(c.IssuedAt.Time()):
		return fmt.Errorf("%w: it was issued in the future; compare the clocks of the hub's replicas", ErrToken)
	case !now.Before(c.Expiry.Time()):
		return fmt.Errorf("%w: it has expired", ErrToken)
	}
	return nil
}
