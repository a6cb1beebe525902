// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/json"
	"time"
)

// DirectSecret is the name of a Secret in the agent's namespace that lets users reach the member without the hub. The
// Secret is delivered as part of a set. DirectKey is the key in its data that holds a DirectAccess as JSON.
const (
	DirectSecret = "drover-direct-access"
	DirectKey    = "access.json"
)

// DirectName is the name of the DaemonSet that reviews the tokens of direct users on behalf of the API servers. It is
// also the name of the DaemonSet's ServiceAccount and RBAC objects, and the value of LabelName on its pods.
const DirectName = "drover-direct"

// DirectAddress is the address at which each pod of the DaemonSet serves. It is a loopback address of the pod's node.
const DirectAddress = "127.0.0.1:6440"

// DirectAuthority is the name of the Secret that the agent creates in its namespace. The Secret contains the CA that
// signed the agent's certificate for direct access.
const DirectAuthority = "drover-agent-direct"

// Limits for direct access.
const (
	// MaxDenied is the maximum number of sessions that a DirectAccess can deny individually. If there are more, all
	// sessions are denied.
	MaxDenied = 10_000
	// MaxDirectAuthority is the maximum size of Report.DirectAuthority, in bytes.
	MaxDirectAuthority = 4 << 10
)

// DirectAccess configures how an agent serves users who do not connect through the hub. Such users present tokens from
// the hub's issuer.
type DirectAccess struct {
	// Issuer and Audience are the iss and aud claims that a token must have. The audience is the URL of the cluster
	// on the hub.
	Issuer   string `json:"issuer"`
	Audience string `json:"audience"`
	// Keys is a JSON Web Key Set that contains the issuer's keys.
	Keys json.RawMessage `json:"keys"`
	// Lifetime is the maximum validity of a token, in seconds.
	Lifetime int64 `json:"lifetimeSeconds"`
	// Denied lists the sessions whose tokens are refused, in sorted order. These sessions were revoked, or their users
	// may no longer sign in. Denied contains at most MaxDenied sessions.
	Denied []string `json:"denied,omitempty"`
	// DenyAll is set if every token is refused. The hub sets it when more than MaxDenied sessions have to be denied.
	DenyAll bool `json:"denyAll,omitempty"`
	// ValidUntil is when the keys and the list of denied sessions expire. Every token is refused after this time.
	ValidUntil time.Time `json:"validUntil"`
	// Host is the name or address for which the certificate is issued.
	Host string `json:"host"`
	// Mode is v1.AuthorizedEndpointAPIServer if users connect to the member's API servers, and empty if they connect to
	// its agent. An older agent rejects a mode that it does not support.
	Mode string `json:"mode,omitempty"`
	// TLSSecret is the name of a Secret of type kubernetes.io/tls in the agent's namespace that contains the
	// certificate. If it is empty, the agent creates a certificate.
	TLSSecret string `json:"tlsSecret,omitempty"`
}
