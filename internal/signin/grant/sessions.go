// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"context"
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/signin/accesstoken"
	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/refresh"
	"github.com/drover-dev/drover/internal/signin/session"
	"github.com/drover-dev/drover/internal/signin/token"
)

// SessionInfo describes a session to its user.
type SessionInfo struct {
	ID string `json:"id"`
	// Client is kubectl, page or device.
	Client  string    `json:"client"`
	Started time.Time `json:"started"`
	// Renewed is the time when the client last renewed its tokens. While a client is in use, it renews them about every
	// 10 minutes. A session without refresh tokens has no such time.
	Renewed *time.Time `json:"renewed,omitempty"`
	// Expires is the time when the session ends unless it is renewed before.
	Expires time.Time `json:"expires"`
	// Current reports whether the token of the request belongs to the session.
	Current bool `json:"current,omitempty"`
}

// SessionList is a list of sessions.
type SessionList struct {
	Items []SessionInfo `json:"items"`
}

func (s *Server) listOwn(_ http.ResponseWriter, r *http.Request, owner accesstoken.Owner) (any, error) {
	all, err := s.Sessions.Of(r.Context(), owner.User, owner.UID)
	if err != nil {
		return nil, refusal.Unavailable("the hub cannot list sessions at the moment; try again").Because(err)
	}
	list := SessionList{Items: make([]SessionInfo, 0, len(all))}
	for _, one := range all {
		info := SessionInfo{ID: one.ID(), Client: one.Client(), Started: one.Began(), Expires: s.ends(r.Context(), one),
			Current: one.ID() == owner.Session}
		if !s.Now().Before(info.Expires) {
			continue
		}
		if state, ok := one.Refresh(); ok {
			info.Renewed = &state.Used
		}
		list.Items = append(list.Items, info)
	}
	return list, nil
}

// ends returns the time when a session ends unless it is renewed before. A session that can no longer be renewed, for
// example because its user has changed the password, ends with its tokens.
func (s *Server) ends(ctx context.Context, of session.Session) time.Time {
	state, ok := of.Refresh()
	if !ok {
		return of.Ends()
	}
	keys, err := s.Keyring.Current(ctx)
	renewable := err != nil || string(of.Data[session.KeyKeys]) == string(keys.UID)
	if of.Provider() == "" {
		err = s.Accounts.SamePassword(ctx, s.Accounts.Cache, of.User(), string(of.Data[session.KeyPassword]))
	} else {
		err = s.Accounts.Standing(ctx, s.Accounts.Cache, of.Claims())
	}
	if renewable && !errors.Is(err, account.ErrNotStanding) {
		return of.Ends()
	}
	last := state.Used.Add(token.Lifetime)
	if direct := of.Direct(); direct.After(last) {
		return direct
	}
	return last
}

// endOwn ends one of the user's sessions. The response for another user's session is the same as for an unknown ID.
func (s *Server) endOwn(_ http.ResponseWriter, r *http.Request, owner accesstoken.Owner) (any, error) {
	none := refusal.New(http.StatusNotFound, metav1.StatusReasonNotFound, "you have no session with that ID")
	id := r.PathValue("id")
	if !refresh.IsSession(id) {
		return nil, none
	}
	of, err := s.Sessions.Find(r.Context(), id)
	if errors.Is(err, session.ErrBusy) {
		return nil, refusal.TooManyRequests("too many requests for sessions at the moment; try again", time.Second).
			Because(err)
	}
	if apierrors.IsNotFound(err) || err == nil && !of.Open(owner.User, owner.UID, s.Now()) {
		return nil, none
	}
	if err == nil {
		err = s.Sessions.Revoke(r.Context(), id)
	}
	if err != nil {
		return nil, refusal.Unavailable("the hub cannot end the session at the moment; try again").Because(err)
	}
	// The next list should not contain the session. If the cache does not show the revocation in time, it may. The wait
	// must not hold up other users.
	owner.Release()
	_ = wait.PollUntilContextTimeout(r.Context(), 5*time.Millisecond, accesstoken.Seen, true,
		func(ctx context.Context) (bool, error) {
			ended, err := s.Sessions.Cached(ctx, id)
			return err != nil || ended.Revoked(), nil
		})
	return struct{}{}, nil
}
