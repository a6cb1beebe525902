// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/signin/accesstoken"
	"github.com/drover-dev/drover/internal/signin/keyring"
	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/internal/signin/token"
)

// Types of tokens (RFC 8693).
const (
	typeAccessToken = "urn:ietf:params:oauth:token-type:access_token"
	typeIDToken     = "urn:ietf:params:oauth:token-type:id_token"
)

// exchange issues a token for one cluster in exchange for a token for all clusters (RFC 8693). The new token belongs to
// the same session and expires at the same time. The hub does not store an object for the new token, and checks on each
// request whether the user may reach the cluster. Tokens for direct access are different; see giveDirect.
func (s *Server) exchange(ctx context.Context, keys *keyring.Keys, fields url.Values) (Granted, error) {
	audience, err := s.parseExchange(fields)
	if err != nil {
		return Granted{}, err
	}
	t, id, err := s.AccessTokens.BySession(ctx, fields.Get("subject_token"))
	if err != nil {
		if refused := refusal.Of(err); refused.Status().Code < http.StatusInternalServerError {
			return Granted{}, oauth.Invalid("subject_token: %s", refused.Status().Message) // RFC 8693, section 2.2.2
		}
		return Granted{}, err
	}
	audit.From(ctx).Identified(audit.User{Name: id.User, UID: id.UID}, nil)
	if cluster, direct := s.Direct.Cluster(audience); direct {
		t.Audience = jwt.Audience{audience}
		return s.giveDirect(ctx, keys, t, id, cluster)
	}
	now := s.Now()
	signed, err := token.Sign(keys.Active, token.Claims{
		Issuer: s.Issuer, Subject: t.Subject, Audience: jwt.Audience{audience}, Authenticated: t.Authenticated,
		Session: t.Session, UID: t.UID, Groups: id.Groups, Expiry: t.Expiry,
	}, now)
	if err != nil {
		return Granted{}, err
	}
	return Granted{
		Access: signed, Issued: typeAccessToken, Type: "Bearer", Expires: int(t.Expiry.Time().Sub(now) / time.Second),
	}, nil
}

// parseExchange checks a request and returns the requested audience. It refuses unsupported parameters instead of
// ignoring them, because a client that requests fewer rights must not get more.
func (s *Server) parseExchange(fields url.Values) (audience string, err error) {
	audience = fields.Get("audience")
	_, one := oauth.ClusterOf(audience)
	_, direct := s.Direct.Cluster(audience)
	kind, wanted := fields.Get("subject_token_type"), fields.Get("requested_token_type")
	switch {
	case fields.Get("subject_token") == "":
		return "", oauth.Invalid("subject_token is required")
	case kind != typeAccessToken && kind != typeIDToken:
		return "", oauth.Invalid("subject_token_type must be %s or %s", typeAccessToken, typeIDToken)
	case fields.Has("actor_token") || fields.Has("actor_token_type"):
		return "", oauth.Invalid("actor_token is not supported: a token is of one user")
	case fields.Has("requested_token_type") && wanted != typeAccessToken:
		return "", oauth.Invalid("requested_token_type must be %s", typeAccessToken)
	case fields.Has("scope") && fields.Get("scope") != oauth.ScopeOpenID:
		return "", &oauth.Error{
			Code: "invalid_scope", Description: "scope must be " + oauth.ScopeOpenID + ", or be left out",
		}
	case fields.Has("resource"):
		return "", &oauth.Error{
			Code: "invalid_target", Description: "specify the cluster with audience, not with resource",
		}
	case !direct && !one:
		return "", &oauth.Error{
			Code: "invalid_target", Description: "audience must be " + oauth.AudienceCluster + "<namespace>/<name>",
		}
	}
	return audience, nil
}

// giveDirect issues a token that lets the user of a session reach a cluster without the hub. Such a token is not valid
// for the hub, and is valid for longer than other tokens. The session records when the last of these tokens expires,
// because members must be notified if the session ends earlier.
func (s *Server) giveDirect(
	ctx context.Context, keys *keyring.Keys, t accesstoken.Verified, id identity.Identity, cluster string,
) (Granted, error) {
	namespace, name, _ := strings.Cut(cluster, "/")
	lifetime, err := s.Direct.Lifetime(ctx, id, types.NamespacedName{Namespace: namespace, Name: name})
	if err != nil {
		return Granted{}, err
	} else if lifetime <= 0 { // the response is the same in both cases, so that it does not reveal which clusters exist
		return Granted{}, &oauth.Error{
			Code: "invalid_target", Description: "the cluster has no direct access, or you may not reach it",
		}
	}
	of, err := s.Sessions.Cached(ctx, t.Session)
	if apierrors.IsNotFound(err) { // the cache might not contain the session yet
		of, err = s.Sessions.Live(ctx, t.Session)
	}
	if client.IgnoreNotFound(err) != nil {
		return Granted{}, fmt.Errorf("read session %s: %w", t.Session, err)
	} else if _, lasts := of.Refresh(); err != nil || !lasts {
		return Granted{}, oauth.Invalid("subject_token: direct access requires a session with the scope %s; sign in again",
			oauth.ScopeOffline)
	}
	now := s.Now()
	until := now.Add(min(lifetime, token.LongestDirect))
	if last := of.Began().Add(s.Sessions.Lifetime); last.Before(until) {
		until = last
	}
	if !now.Before(until) {
		return Granted{}, oauth.Invalid("subject_token: the session has ended; sign in again")
	}
	if err := s.Sessions.NoteDirect(ctx, of, until); err != nil {
		return Granted{}, err
	}
	signed, err := token.SignFor(token.LongestDirect, keys.Active, token.Claims{
		Issuer: s.Issuer, Subject: t.Subject, Audience: t.Audience, Authenticated: t.Authenticated,
		Session: t.Session, UID: t.UID, Groups: id.Groups, Expiry: jwt.NewNumericDate(until),
	}, now)
	if err != nil {
		return Granted{}, err
	}
	return Granted{
		Access: signed, Issued: typeAccessToken, Type: "Bearer", Expires: int(until.Sub(now) / time.Second),
	}, nil
}
