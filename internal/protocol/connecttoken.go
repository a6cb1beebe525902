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

// ConnectTokenTTL is how long a connect token is valid. Clocks may differ by ClockSkew on top.
const (
	ConnectTokenTTL = 60 * time.Second
	ClockSkew       = 30 * time.Second
)

// Bounds of a connect token, in bytes: the whole of it, before it is parsed, and its ID and instance, which the hub
// must remember.
const (
	maxConnectToken   = 4 << 10
	maxConnectTokenID = 128
	maxInstance       = 128
)

// ConnectClaims are what an agent signs each time that it connects.
type ConnectClaims struct {
	// ID is unique to one attempt, at most 128 bytes; the hub accepts it once.
	ID string
	// Audience names the hub, as RegisterResponse.Audience did.
	Audience string
	// Cluster that the agent is.
	Cluster ClusterRef
	// ClusterUID is the UID of the namespace kube-system.
	ClusterUID string
	// Instance names the agent's process among those of its cluster, at most 128 bytes. Of two tunnels of one process the
	// older is not used. Empty for agents without it.
	Instance string
	// NodeAgent reports whether the process is a node agent, whose tunnel is used while there is no other.
	NodeAgent bool
	// IssuedAt is the agent's clock.
	IssuedAt time.Time
}

// claims is the form of ConnectClaims in the token.
type claims struct {
	jwt.Claims
	Cluster    ClusterRef `json:"cluster"`
	ClusterUID string     `json:"clusterUID"`
	Instance   string     `json:"instance,omitempty"`
	NodeAgent  bool       `json:"nodeAgent,omitempty"`
}

// ErrConnectToken means that a connect token is not valid. It never holds the token.
var ErrConnectToken = errors.New("connect token")

// ErrSignature means that a connect token was not signed with the expected key. It is an ErrConnectToken.
var ErrSignature = fmt.Errorf("%w: signature does not verify", ErrConnectToken)

// SignConnectToken makes a connect token: a JWT signed with EdDSA, valid for ConnectTokenTTL.
func SignConnectToken(key ed25519.PrivateKey, c ConnectClaims) (string, error) {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: key}, (&jose.SignerOptions{}).WithType("JWT"))
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

// PeekConnectToken reads the cluster from a token without verifying it: only to find the key to verify it with.
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

// VerifyConnectToken checks signature, audience and time of a token. Whether its ID was seen before is for the caller
// to check.
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
	case audience == "": // jwt would not compare it
		return ConnectClaims{}, fmt.Errorf("%w: the hub has no identity to compare its audience with", ErrConnectToken)
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
		ID: c.ID, Audience: audience, Cluster: c.Cluster, ClusterUID: c.ClusterUID, Instance: c.Instance, NodeAgent: c.NodeAgent, IssuedAt: c.IssuedAt.Time(),
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
