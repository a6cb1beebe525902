// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"time"

	"github.com/drover-dev/drover/internal/signin/oauth"
	sessions "github.com/drover-dev/drover/internal/signin/session"
)

// Bounds that clients meet. The packages of the issuer define them.
const (
	codeLifetime     = sessions.CodeLifetime
	codesOfOneAtOnce = 10
	failuresAtOnce   = 20
	maxAnswer        = 16 << 10
	maxDescription   = 256
	maxForm          = oauth.MaxForm
	maxGroups        = 6 << 10
	maxSessions      = 16
	maxTokens        = 64
	maxUpstreamID    = 255
	maxUpstreamState = 4 << 10
	pageLifetime     = 10 * time.Minute
	pollEvery        = 5 * time.Second
	replay           = 2 * codeLifetime
	unseenPerSecond  = 20
	usedEvery        = time.Hour
)

// wrongPassword is the message for all that is wrong with a name and a password.
const wrongPassword = "The user name or the password is wrong, or the user may not sign in."

// Names that clients and audit logs use.
const (
	grantDevice     = "urn:ietf:params:oauth:grant-type:device_code"
	grantExchange   = "urn:ietf:params:oauth:grant-type:token-exchange"
	typeAccessToken = "urn:ietf:params:oauth:token-type:access_token"
	typeIDToken     = "urn:ietf:params:oauth:token-type:id_token"
	credentialID    = "authentication.kubernetes.io/credential-id"
)
