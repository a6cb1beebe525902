// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/connector"
	"github.com/drover-dev/drover/internal/signin/quietlog"
	"github.com/drover-dev/drover/internal/signin/session"
	"github.com/drover-dev/drover/internal/signin/upstream"
)

// reviewer decides whether the user of a session may still sign in.
type reviewer struct {
	accounts   *account.Accounts
	sessions   *session.Store
	connectors *upstream.Connectors
	log        *quietlog.Log
}

// review returns account.ErrNotStanding if the user of a session may no longer sign in. The caller must have read the
// session from the API server. If provider is set and the user comes from a provider, review queries the provider and
// updates the session. The caller then stores the session with the next refresh token. Several requests may review the
// same session at the same time, but session.Store.ClaimAsking lets only one of them query the provider.
func (v reviewer) review(ctx context.Context, of session.Session, provider bool) error {
	switch {
	case of.Provider() == "":
		return v.reviewLocal(ctx, of)
	case provider:
		return v.askProvider(ctx, of)
	}
	return v.accounts.Standing(ctx, v.accounts.Live, of.Claims())
}

// reviewLocal reviews the session of a local User. If the cache says that the user is not allowed to sign in,
// reviewLocal checks the API server too, because the cache may be out of date.
func (v reviewer) reviewLocal(ctx context.Context, of session.Session) error {
	inCacheOrLive := func(check func(client.Reader) error) error {
		err := check(v.accounts.Cache)
		if errors.Is(err, account.ErrNotStanding) {
			err = check(v.accounts.Live)
		}
		return err
	}
	if err := inCacheOrLive(func(from client.Reader) error {
		return v.accounts.Standing(ctx, from, of.Claims())
	}); err != nil {
		return err
	}
	return inCacheOrLive(func(from client.Reader) error {
		return v.accounts.SamePassword(ctx, from, of.User(), string(of.Data[session.KeyPassword]))
	})
}

// askProvider queries the provider of a session again. It returns account.ErrNotStanding if the provider refuses the
// user, or if the user's name or ID has changed. In both cases the user has to sign in again.
func (v reviewer) askProvider(ctx context.Context, of session.Session) error {
	p, err := v.accounts.Provider(ctx, v.accounts.Live, of.Provider())
	if err != nil {
		return err
	}
	if string(p.UID) != of.ProviderUID() {
		return account.ErrNotStanding
	}
	if err := v.accounts.Enabled(ctx, of.Principal()); err != nil {
		return err
	}
	made, err := v.connectors.Get(ctx, p)
	if err != nil {
		return err
	}
	refresher, ok := made.(connector.Refresher)
	if !ok { // users of this provider have to sign in again
		return account.ErrNotStanding
	}
	if err := v.sessions.ClaimAsking(ctx, of); err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, session.AskLimit)
	defer cancel()
	u, err := refresher.Refresh(within, of.Upstream())
	if errors.Is(err, connector.ErrRefused) {
		v.log.Info("a provider no longer accepts a user", "user", of.Principal(), "reason", err.Error())
		return account.ErrNotStanding
	} else if err != nil {
		v.sessions.EndAsking(ctx, of)
		return fmt.Errorf("ask provider %s: %w", of.Provider(), err)
	}
	claims, err := v.accounts.Claim(p, u)
	if errors.Is(err, connector.ErrRefused) {
		return account.ErrNotStanding
	} else if err != nil {
		if len(u.State) <= account.MaxState {
			of.Data[session.KeyState] = u.State // the provider may no longer accept the previous state
		}
		v.sessions.EndAsking(ctx, of)
		return err
	}
	delete(of.Data, session.KeyAsking)
	if claims.Principal() != of.Principal() || string(claims.UID) != of.UID() {
		return account.ErrNotStanding
	}
	of.Update(claims)
	return nil
}
