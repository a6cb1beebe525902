// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/keyring"
	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/internal/signin/refresh"
	"github.com/drover-dev/drover/internal/signin/session"
)

// askingPause is the polling interval while another replica queries the provider.
const askingPause = 100 * time.Millisecond

// refreshGate returns a gate for sessions of users from providers. It lets one request at a time refresh a session.
// Concurrent requests wait and get the same result.
func refreshGate() *limit.Gate {
	bounds := limit.Bounds{User: 1, Queue: 1024, QueueUser: 32, Wait: session.AskLimit}
	return limit.NewGate(bounds, limit.Observer{})
}

// Refresh issues new tokens for a refresh token.
func (s *Server) Refresh(ctx context.Context, keys *keyring.Keys, fields url.Values) (Granted, error) {
	given, ok := refresh.Parse(fields.Get("refresh_token"))
	if !ok {
		return Granted{}, session.ErrRefresh
	}
	known, err := s.Sessions.Given(ctx, given)
	if err != nil {
		return Granted{}, err
	}
	audit.From(ctx).Identified(audit.User{Name: known.Principal(), UID: known.UID()}, nil)
	// continue even if the client disconnects
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), session.WriteLimit)
	defer cancel()
	if known.Provider() != "" {
		seat, err := s.refreshes.Enter(ctx, limit.Requester{User: given.Session})
		if err != nil {
			return Granted{}, err
		}
		defer seat.Release()
	}
	for tries := 0; tries < contended; {
		rotated, next, err := s.rotate(ctx, keys, given)
		switch {
		case err == nil:
			return s.give(keys, rotated, "", next)
		case errors.Is(err, session.ErrAsking):
			select {
			case <-time.After(askingPause):
			case <-ctx.Done():
				return Granted{}, err
			}
		case apierrors.IsConflict(err):
			tries++
		default:
			return Granted{}, err
		}
	}
	return Granted{}, fmt.Errorf("refresh session %s: %d times another replica wrote it", given.Session, contended)
}

// rotate exchanges a refresh token for a new one, and returns the new token and its session. It reads the session from
// the API server and writes it back. If another replica writes the session in the meantime, rotate returns a conflict
// error, and the caller must call rotate again.
func (s *Server) rotate(
	ctx context.Context, keys *keyring.Keys, given refresh.Token,
) (of session.Session, token string, err error) {
	of, err = s.Sessions.Live(ctx, given.Session)
	if apierrors.IsNotFound(err) {
		return of, "", session.ErrRefresh
	} else if err != nil {
		return of, "", fmt.Errorf("read session %s: %w", given.Session, err)
	}
	state, ok := of.Refresh()
	if !ok || of.Revoked() || string(of.Data[session.KeyKeys]) != string(keys.UID) ||
		!s.Sessions.Refreshable(of, state) {
		return of, "", session.ErrRefresh
	}
	next, state, outcome := state.Use(given, s.Now())
	switch outcome {
	case refresh.Foreign:
		return of, "", session.ErrRefresh
	case refresh.TooSoon:
		return of, "", &oauth.Later{After: refresh.Pause, Err: oauth.Error{
			Code: oauth.TooMany, Description: "the session was refreshed just now; wait a second",
		}}
	case refresh.Reused:
		s.Log.Info("a refresh token was used twice, so its session is revoked", "user", of.Principal())
		return of, "", orRefused(s.Sessions.Revoke(ctx, given.Session), session.ErrRefresh)
	case refresh.Rotated, refresh.Repeated:
	}
	err = s.reviewer.review(ctx, of, outcome == refresh.Rotated)
	if errors.Is(err, account.ErrNotStanding) {
		return of, "", orRefused(s.Sessions.Revoke(ctx, given.Session), session.ErrRefresh)
	} else if err != nil {
		return of, "", err
	}
	if outcome == refresh.Repeated {
		return of, next.String(), nil
	}
	if err := s.Sessions.KeepRefresh(of, state); err != nil {
		return of, "", err
	}
	if err := s.Sessions.Save(ctx, of); apierrors.IsNotFound(err) {
		return of, "", session.ErrRefresh
	} else if err != nil {
		return of, "", fmt.Errorf("write session %s: %w", given.Session, err)
	}
	return of, next.String(), nil
}
