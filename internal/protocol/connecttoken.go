// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// ConnectTokenTTL is how long a connect token is valid. Verification also tolerates a clock difference of up to
// ClockSkew.
const (
	ConnectTokenTTL = 60 * time.Second
	ClockSkew       = 30 * time.Second
)

// Limits for a connect token, in bytes. The size of the whole token is checked before the token is parsed. The ID and
// the instance are limited because the hub has to store them.
const (
	maxConnectToken   = 4 << 10
	maxConnectTokenID = 128
	maxInstance       = 128
)

// ConnectClaims are the claims that an agent signs each time it connects.
type ConnectClaims struct {
	// ID is unique to one attempt to connect. The hub accepts an ID only once. An ID is at most 128 bytes long.
	ID string
	// Audience identifies the hub. It comes from RegisterResponse.Audience.
	Audience string
	// Cluster is the Cluster that the agent belongs to.
	Cluster ClusterRef
	// ClusterUID is the UID of the kube-system namespace.
	ClusterUID string
	// Instance identifies the agent's process among the agent processes in its cluster. If a process has two tunnels,
	// the hub uses only the newer one. Instance is empty for older agents. It is at most 128 bytes long.
	Instance string
	// NodeAgent is true if the process is a node agent. The hub uses the tunnel of a node agent only while there is no
	// other tunnel.
	NodeAgent bool
	// IssuedAt is the time at which the claims were signed, according to the agent's clock.
	IssuedAt time.Time
}

// claims is the JSON form of ConnectClaims.
type claims struct {
	jwt.Claims
	Cluster    ClusterRef `json:"cluster"`
	ClusterUID string     `json:"clusterUID"`
	Instance   string     `json:"instance,omitempty"`
	NodeAgent  bool       `json:"nodeAgent,omitempty"`
}

// ErrConnectToken is returned for an invalid connect token. The error never contains the token.
var ErrConnectToken = errors.New("connect token")

// ErrSignature is returned for a connect token that was not signed with the expected key. It wraps ErrConnectToken.
var ErrSignature = fmt.Errorf("%w: signature does not verify", ErrConnectToken)

// SignConnectToken returns a connect token: a JWT that is signed with EdDSA and valid for ConnectTokenTTL.
func SignConnectToken(key ed25519.PrivateKey, c ConnectClaims) (string, error) {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: key},
		(&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return "", fmt.Errorf("sign %w: %w", ErrConnectToken, err)
	}
	return jwt.Signed(signer).Claims(claims{
		Claims: jwt.Claims{
			ID:       c.ID,
			Audience: jwt.Audience{c.Audience},
			Subject:  c.Cluster.String(),
			IssuedAt: jwt.NewNumericDate(c.IssuedAt),
			Expiry:   jwt.NewNumericDate(c.IssuedAt.Add(ConnectTokenTTL)),
		},
		Cluster:    c.Cluster,
		ClusterUID: c.ClusterUID,
		Instance:   c.Instance,
		NodeAgent:  c.NodeAgent,
	}).Serialize()
}

// PeekConnectToken reads the Cluster from a token without verifying the token. Use it only to find the key that
// verifies the token.
func PeekConnectToken(token string) (ClusterRef, error) {
	parsed, err := parseConnectToken(token)
	if err != nil {
		return ClusterRef{}, err
	}
	var c claims
	if err := parsed.UnsafeClaimsWithoutVerification(&c); err != nil {
		return ClusterRef{}, fmt.Errorf("%w: malformed claims", ErrConnectToken)
	}
	return c.Cluster, nil
}

// VerifyConnectToken checks a token's signature, audience and times. The caller must check whether the ID has been
// used before.
func VerifyConnectToken(token string, key ed25519.PublicKey, audience string, now time.Time) (ConnectClaims, error) {
	parsed, err := parseConnectToken(token)
	if err != nil {
		return ConnectClaims{}, err
	}
	var c claims
	if err := parsed.Claims(key, &c); errors.Is(err, jose.ErrCryptoFailure) {
		return ConnectClaims{}, ErrSignature
	} else if err != nil {
		return ConnectClaims{}, fmt.Errorf("%w: malformed claims", ErrConnectToken)
	}
	expected := jwt.Expected{AnyAudience: jwt.Audience{audience}, Subject: c.Cluster.String(), Time: now}
	switch err := c.ValidateWithLeeway(expected, ClockSkew); {
	case audience == "": // otherwise, a token with an empty audience would match
		return ConnectClaims{}, fmt.Errorf("%w: the hub has no identity yet to compare the audience with", ErrConnectToken)
	case err != nil:
		return ConnectClaims{}, fmt.Errorf("%w: %w", ErrConnectToken, err)
	case c.ID == "", c.IssuedAt == nil, c.Expiry == nil:
		return ConnectClaims{}, fmt.Errorf("%w: jti, iat and exp are required", ErrConnectToken)
	case len(c.ID) > maxConnectTokenID:
		return ConnectClaims{}, fmt.Errorf("%w: jti is longer than %d bytes", ErrConnectToken, maxConnectTokenID)
	case len(c.Instance) > maxInstance:
		return ConnectClaims{}, fmt.Errorf("%w: instance is longer than %d bytes", ErrConnectToken, maxInstance)
	case c.Expiry.Time().Sub(c.IssuedAt.Time()) > ConnectTokenTTL:
		return ConnectClaims{}, fmt.Errorf("%w: valid for longer than %s", ErrConnectToken, ConnectTokenTTL)
	}
	return ConnectClaims{
		ID: c.ID, Audience: audience, Cluster: c.Cluster, ClusterUID: c.ClusterUID, Instance: c.Instance,
		NodeAgent: c.NodeAgent, IssuedAt: c.IssuedAt.Time(),
	}, nil
}

func parseConnectToken(token string) (*jwt.JSONWebToken, error) {
	if len(token) > maxConnectToken {
		return nil, fmt.Errorf("%w: longer than %d bytes", ErrConnectToken, maxConnectToken)
	}
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.EdDSA})
	if err != nil {
		return nil, fmt.Errorf("%w: malformed", ErrConnectToken)
	}
	return parsed, nil
}
