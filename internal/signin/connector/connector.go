// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package connector defines how the issuer asks an upstream for users: a directory, GitHub, an OpenID provider.
package connector

import (
	"context"
	"errors"
	"net/url"
)

// ErrRefused means that the upstream answered and does not let the user in: the password is wrong, or the user is
// disabled or in none of the allowed groups. Every other error means that the upstream could not be asked.
var ErrRefused = errors.New("the provider refuses the user")

// User is a user as an upstream describes them at one time.
type User struct {
	// ID is the upstream's ID, which is never given to another user: sub, objectGUID, entryUUID, the number of a GitHub
	// account.
	ID string
	// Name and Groups are the names in principals, without the provider's name.
	Name   string
	Groups []string
	// Notice says what the upstream left out, such as groups, and what the user can do about it. The user sees it. It
	// contains no text of the upstream.
	Notice string
	// State is secret. Refresh needs it to ask again: it may be a refresh token of the upstream.
	State []byte
}

// Connector is an upstream. Its type may implement the other interfaces of this package, each of which is a way to ask
// for users.
type Connector interface {
	// Check reports whether the upstream can be asked, without a user.
	Check(ctx context.Context) error
}

// Refresher is an upstream that can be asked again for a user who signed in before. Without it, the session of a user
// ends with its first token.
type Refresher interface {
	Connector
	// Refresh returns the user as the upstream has them now, or ErrRefused if it no longer lets them in.
	Refresh(ctx context.Context, last User) (User, error)
}

// Password is an upstream that takes a name and a password.
type Password interface {
	Connector
	// Login returns the user of a name and a password, or ErrRefused.
	Login(ctx context.Context, name, password string) (User, error)
}

// Redirect is an upstream with a login page of its own.
type Redirect interface {
	Connector
	// Begin returns the address of the login page. The upstream sends the browser back to callback with state. Private
	// is what Finish needs to know of this login, such as a nonce and a PKCE verifier; the caller keeps it sealed.
	Begin(ctx context.Context, callback, state string) (address string, private []byte, err error)
	// Finish returns the user whom the upstream's answer names. The caller has checked the state.
	Finish(ctx context.Context, callback string, private []byte, answer url.Values) (User, error)
}

// PostCallback is a Redirect whose upstream sends the browser back with a form, as SAML does.
type PostCallback interface {
	Redirect
	// StateField returns the name of the form's field with the state, such as RelayState. The address of the login page
	// has a parameter of the same name.
	StateField() string
}
