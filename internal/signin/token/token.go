// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package token signs and verifies the tokens that the issuer gives to users.
//
// The hub and the agents on members share this package. For direct access, an agent verifies users' tokens with only
// the issuer's public keys.
package token

import (
	"crypto/ecdsa"
	"crypto/elliptic"
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
	// skew is the maximum accepted difference between the clocks of replicas.
	skew = 30 * time.Second
	// Max is the maximum length of a token, in bytes.
	Max = 16 << 10
)

// ErrToken means that a token does not come from this issuer or is not currently valid.
var ErrToken = errors.New("the token is not valid")

// Claims are the claims of a token. They identify a user.
type Claims struct {
	Issuer   string           `json:"iss"`
	Subject  string           `json:"sub"`
	Audience jwt.Audience     `json:"aud"`
	IssuedAt *jwt.NumericDate `json:"iat"`
	Expiry   *jwt.NumericDate `json:"exp"`
	Nonce    string           `json:"nonce,omitempty"`
	// Authenticated is the time when the user signed in. Refreshing a token does not change this time.
	Authenticated *jwt.NumericDate `json:"auth_time,omitempty"`
	// Session is the ID of the session that the token belongs to.
	Session string `json:"sid"`
	// UID is the UID of a User, or the ID of a provider's user. The UID changes when a User is deleted and recreated.
	UID string `json:"uid"`
	// Groups are the user's groups that bindings refer to. Each has the prefix of its provider.
	Groups []string `json:"groups,omitempty"`
}

// Sign returns a token with the claims. The token expires after Lifetime, or at the claims' Expiry if that is earlier.
func Sign(key keys.Key, c Claims, now time.Time) (string, error) {
	return SignFor(Lifetime, key, c, now)
}

// SignFor returns a token with the claims. The token expires after the given lifetime, or at the claims' Expiry if that
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

// IssuedBy reports whether a token claims to come from an issuer. It does not verify the claim.
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

// Verify returns the claims of a token from the issuer. It also returns the ID of the key that signed the token. The
// token must have exactly one audience. The accepted function returns the maximum lifetime of tokens for an audience,
// or 0 if the audience is not accepted.
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

// Current returns an error if the claims have expired or are not valid yet.
func (c Claims) Current(now time.Time) error {
	switch {
	case now.Add(skew).Before(c.IssuedAt.Time()):
		return fmt.Errorf("%w: it was issued in the future; compare the clocks of the hub's replicas", ErrToken)
	case !now.Before(c.Expiry.Time()):
		return fmt.Errorf("%w: it has expired", ErrToken)
	}
	return nil
}

// maxPublished is the maximum number of keys that an issuer may publish.
const maxPublished = 16

// Published holds the public keys of an issuer, by ID.
type Published map[string]*ecdsa.PublicKey

// ParsePublished decodes a JSON Web Key Set (RFC 7517) in the format that the issuer publishes. It rejects a set that
// contains other types of keys.
func ParsePublished(raw []byte) (Published, error) {
	var set jose.JSONWebKeySet
	if err := untrusted.JSON(raw, &set, untrusted.Small()); err != nil || len(set.Keys) > maxPublished {
		return nil, errors.New("the keys of the issuer are malformed, or too many")
	}
	keys := Published{}
	for _, key := range set.Keys {
		public, ok := key.Key.(*ecdsa.PublicKey)
		if !ok || public.Curve != elliptic.P256() || key.KeyID == "" || key.Algorithm != string(jose.ES256) ||
			key.Use != "sig" || keys[key.KeyID] != nil {
			return nil, errors.New("the keys of the issuer are not all public ES256 keys with different names")
		}
		keys[key.KeyID] = public
	}
	return keys, nil
}

// Public implements Keys.
func (p Published) Public(id string) (*ecdsa.PublicKey, bool) {
	key, known := p[id]
	return key, known
}
