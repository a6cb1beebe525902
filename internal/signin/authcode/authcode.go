// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package authcode has the authorization codes that login pages give and the token endpoint takes.
package authcode

import (
	"time"

	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/keyring"
)

// Code is the content of an authorization code. It is sealed: before it is redeemed no object exists for it.
type Code struct {
	account.Claims
	// ID is the ID of the session that the code begins.
	ID        string    `json:"i"`
	Redirect  string    `json:"r"`
	Nonce     string    `json:"n"`
	Challenge string    `json:"c"`
	At        time.Time `json:"t"`
	// Offline reports whether the session has refresh tokens.
	Offline bool `json:"o,omitempty"`
}

// Seal returns the code as the client carries it.
func (c Code) Seal(keys *keyring.Keys) (string, error) {
	return keys.Seal(keyring.PurposeCode, c)
}

// Open returns a code that Seal has returned.
func Open(keys *keyring.Keys, sealed string) (c Code, err error) {
	return c, keys.Open(keyring.PurposeCode, sealed, &c)
}
