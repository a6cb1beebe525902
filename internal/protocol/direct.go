// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/json"
	"time"
)

// DirectSecret is the Secret of a set, in the agent's namespace, by which users reach the member without the hub.
// DirectKey is its key, a DirectAccess in JSON.
const (
	DirectSecret = "drover-direct-access"
	DirectKey    = "access.json"
)

// DirectName is the name of the DaemonSet that API servers ask about the tokens of users who come without the hub, of
// its account and its rights, and the value of LabelName of its pods.
const DirectName = "drover-direct"

// DirectAddress is where the pods of that DaemonSet serve, on the network of their nodes.
const DirectAddress = "127.0.0.1:6440"

// DirectAuthority is the Secret that the agent makes, in its namespace, with the CA of its certificate for direct
// access.
const DirectAuthority = "drover-agent-direct"

// Bounds of direct access.
const (
	// MaxDenied is how many sessions a DirectAccess denies one by one. Beyond it all are denied.
	MaxDenied = 10_000
	// MaxDirectAuthority bounds Report.DirectAuthority, in bytes.
	MaxDirectAuthority = 4 << 10
)

// DirectAccess is what an agent serves users by, who come without the hub: they bring tokens of the hub's issuer.
type DirectAccess struct {
	// Issuer and Audience that tokens must have, the latter the URL of the cluster at the hub.
	Issuer   string `json:"issuer"`
	Audience string `json:"audience"`
	// Keys of the issuer: a JSON Web Key Set.
	Keys json.RawMessage `json:"keys"`
	// Lifetime is the longest that a token may be valid, in seconds.
	Lifetime int64 `json:"lifetimeSeconds"`
	// Denied are the sessions whose tokens are refused, in order: those that were revoked, and those of users who may not
	// sign in any more. At most MaxDenied.
	Denied []string `json:"denied,omitempty"`
	// DenyAll refuses every token: more sessions are to be denied than there is room for.
	DenyAll bool `json:"denyAll,omitempty"`
	// ValidUntil is when the keys and the list are too old: from then on every token is refused.
	ValidUntil time.Time `json:"validUntil"`
	// Host is the name or address that the certificate is for.
	Host string `json:"host"`
	// Mode is v1.AuthorizedEndpointAPIServer where the member's API servers serve users, and empty where its agent does:
	// an older agent refuses what it does not know.
	Mode string `json:"mode,omitempty"`
	// TLSSecret is a Secret of type kubernetes.io/tls in the agent's namespace with the certificate. Empty for one that
	// the agent makes.
	TLSSecret string `json:"tlsSecret,omitempty"`
}
