// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package authcode defines the authorization codes that login pages issue and that the token endpoint redeems.
package authcode

import (
	"time"

	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/keyring"
)

// Code is the content of an authorization code. The code is sealed, and no object is stored for it before it is
// redeemed.
type Code struct {
	account.Claims
	// ID is the ID of the session that starts when the code is redeemed.
	ID        string    `json:"i"`
	Redirect  string    `json:"r"`
	Nonce     string    `json:"n"`
	Challenge string    `json:"c"`
	At        time.Time `json:"t"`
	// Offline reports whether the session has refresh tokens.
	Offline bool `json:"o,omitempty"`
}

// Seal returns the code that is given to the client.
func (c Code) Seal(keys *keyring.Keys) (string, error) {
	return keys.Seal(keyring.PurposeCode, c)
}

// Open decodes a code that Seal returned.
func Open(keys *keyring.Keys, sealed string) (c Code, err error) {
	return c, keys.Open(keyring.PurposeCode, sealed, &c)
}
