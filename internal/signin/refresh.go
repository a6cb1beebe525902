// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/signin/refresh"
)

// contended bounds how often a rotation is decided anew because another replica wrote the session in between.
const contended = 4

// errRefresh is the one error for all that is wrong with a refresh token.
var errRefresh error = &protocolError{"invalid_grant", "the refresh token is not valid, has expired or was used before, or its user may not sign in; sign in again"}

// orRefused returns why a session could not be revoked, or else the refusal: a client is told that a session has ended once it has.
func orRefused(err, refusal error) error {
	if err != nil {
		return err
	}
	return refusal
}

// refresh gives new tokens for a refresh token.
func (s *Server) refresh(ctx context.Context, current *loaded, fields url.Values) (granted, error) {
	given, ok := refresh.Parse(fields.Get("refresh_token"))
	if !ok {
		return granted{}, errRefresh
	}
	session, err := s.sessionOf(ctx, given)
	if err != nil {
		return granted{}, err
	}
	audit.From(ctx).Identified(audit.User{Name: principalOf(session), UID: string(session.Data[keyUID])}, nil)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), beginLimit) // a client that hangs up leaves nothing half done
	defer cancel()
	if len(session.Data[keyProvider]) > 0 {
		seat, err := s.providers.refreshes.Enter(ctx, limit.Requester{User: given.Session})
		if err != nil {
			return granted{}, err
		}
		defer seat.Release()
	}
	for tries := 0; tries < contended; {
		next, err := s.rotate(ctx, current, session, given)
		switch {
		case err == nil:
			return s.grant(current, session, "", next)
		case errors.Is(err, errAsking):
			select {
			case <-time.After(askingPause):
			case <-ctx.Done():
				return granted{}, err
			}
		case apierrors.IsConflict(err):
			tries++
		default:
			return granted{}, err
		}
	}
	return granted{}, fmt.Errorf("refresh session %s: %d times another replica wrote it", given.Session, contended)
}

// sessionOf returns the session that a refresh token was given for, or errRefresh. It costs the API server a request only if the cache does not have the session.
func (s *Server) sessionOf(ctx context.Context, given refresh.Token) (*corev1.Secret, error) {
	session, name := &corev1.Secret{}, s.name(SessionPrefix+given.Session)
	err := s.client.Get(ctx, name, session)
	if apierrors.IsNotFound(err) { // another replica may have begun it just now
		if !s.unseen.AllowN(s.now(), 1) {
			return nil, errors.New("look up a session: too many clients ask for those that no cache has")
		}
		err = s.live.Get(ctx, name, session)
	}
	if apierrors.IsNotFound(err) {
		return nil, errRefresh
	} else if err != nil {
		return nil, fmt.Errorf("read session %s: %w", given.Session, err)
	}
	if state, ok := kept(session); !ok || !state.Given(given) {
		return nil, errRefresh // to know the ID of a session is not enough to end it
	}
	return session, nil
}

// rotate returns the refresh token that follows the given one, after the session was read from the API server and written again. Another replica may write it
// in between: then the error is a conflict, and the one whose write came first decides what the token is worth.
func (s *Server) rotate(ctx context.Context, current *loaded, session *corev1.Secret, given refresh.Token) (string, error) {
	name := client.ObjectKeyFromObject(session)
	*session = corev1.Secret{} // what it held would be merged with what is read
	if err := s.live.Get(ctx, name, session); apierrors.IsNotFound(err) {
		return "", errRefresh
	} else if err != nil {
		return "", fmt.Errorf("read session %s: %w", given.Session, err)
	}
	state, ok := kept(session)
	now, begun := s.now(), timeOf(session, keyBegun)
	if !ok || len(session.Data[keyRevoked]) > 0 || string(session.Data[keyKeys]) != string(current.uid) || !now.Before(s.bounds.until(begun, state.Used)) {
		return "", errRefresh
	}
	next, state, outcome := state.Use(given, now)
	switch outcome {
	case refresh.Foreign:
		return "", errRefresh
	case refresh.TooSoon:
		return "", &later{refresh.Pause, protocolError{tooMany, "the session was refreshed just now; wait a second"}}
	case refresh.Reused:
		s.log.Info("a refresh token was used twice: its session is revoked", "user", principalOf(session))
		return "", orRefused(s.revoke(ctx, given.Session), errRefresh)
	case refresh.Rotated, refresh.Repeated:
	}
	if err := s.askAgain(ctx, session, outcome == refresh.Rotated); errors.Is(err, errStanding) {
		return "", orRefused(s.revoke(ctx, given.Session), errRefresh)
	} else if err != nil {
		return "", err
	}
	if outcome == refresh.Repeated {
		return next.String(), nil
	}
	if err := keep(session, state, s.bounds.until(begun, state.Used), now); err != nil {
		return "", err
	}
	if err := s.client.Update(ctx, session); apierrors.IsNotFound(err) { // of the version that was read, or a conflict
		return "", errRefresh
	} else if err != nil {
		return "", fmt.Errorf("write session %s: %w", given.Session, err)
	}
	return next.String(), nil
}

// askAgain asks who the user of a session is, as a login does, and returns errStanding if they may no longer sign in. This is where the provider that the user
// comes from has its say at each refresh. What it changes in the session is written together with the rotation. A refresh token that comes twice within the
// grace, or at two replicas at once, asks twice; a provider is asked once, since it may rotate what it is asked with: see claim.
func (s *Server) askAgain(ctx context.Context, session *corev1.Secret, provider bool) error {
	if len(session.Data[keyProvider]) > 0 {
		if !provider {
			return s.stands(ctx, s.live, whoOf(session))
		}
		return s.askProvider(ctx, session)
	}
	name, uid := session.Labels[labelUser], string(session.Data[keyUID])
	_, err := s.standing(ctx, s.client, name, uid)
	if errors.Is(err, errStanding) { // the session is about to be revoked: the cache may lag
		_, err = s.standing(ctx, s.live, name, uid)
	}
	if err != nil {
		return err
	}
	return s.samePassword(ctx, name, string(session.Data[keyPassword]))
}

// samePassword returns errStanding if a user has another password than when they signed in: a new one ends what was begun with the one before.
func (s *Server) samePassword(ctx context.Context, name, want string) error {
	for _, from := range []client.Reader{s.client, s.live} { // the cache may lag
		secret := &corev1.Secret{}
		if err := from.Get(ctx, s.name(v1.UserSecretPrefix+name), secret); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("read a user: %w", err)
		}
		if hash := string(secret.Data[v1.UserSecretKey]); hash != "" && want == digest(hash) {
			return nil
		}
	}
	return errStanding
}
