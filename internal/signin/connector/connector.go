// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package connector is what the issuer asks of an upstream that knows users: a directory, GitHub, an OpenID provider.
package connector

import (
	"context"
	"errors"
	"net/url"
)

// ErrRefused means that the upstream answered and does not let the user in: a wrong password, a user that it disabled or that is in none of the allowed
// groups. Every other error means that the upstream could not be asked.
var ErrRefused = errors.New("the provider refuses the user")

// User is what an upstream says of a user at one time.
type User struct {
	// ID is the upstream's own and is never given to another user: sub, objectGUID, entryUUID, the number of a GitHub account.
	ID string
	// Name is the one in principals, and Groups are, both without the provider's name.
	Name   string
	Groups []string
	// Notice says what the upstream left out, such as groups, and what the user can do about it. It is shown to them,
	// and has nothing that the upstream wrote.
	Notice string
	// State is what Refresh needs to ask again, such as a refresh token of the upstream. It is secret.
	State []byte
}

// Refresher asks again for a user who signed in before.
type Refresher interface {
	// Refresh returns the user as the upstream has them now. It returns ErrRefused if the upstream no longer lets them in.
	Refresh(ctx context.Context, last User) (User, error)
}

// Password is an upstream that takes a name and a password.
type Password interface {
	Refresher
	// Login returns the user of a name and a password, or ErrRefused.
	Login(ctx context.Context, name, password string) (User, error)
}

// Redirect is an upstream with a login page of its own.
type Redirect interface {
	Refresher
	// Begin returns the address to send the browser to. The upstream sends it back to callback with state. Private is what Finish needs to know of this
	// login, such as a nonce and a PKCE verifier; the caller keeps it sealed.
	Begin(ctx context.Context, callback, state string) (address string, private []byte, err error)
	// Finish returns the user whom the upstream's answer speaks of. It does not check state: the caller has.
	Finish(ctx context.Context, callback string, private []byte, answer url.Values) (User, error)
}

// Checker reports whether an upstream can be asked, without a user.
type Checker interface {
	Check(ctx context.Context) error
}
