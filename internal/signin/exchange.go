// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"crypto/sha256"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/signin/token"
)

// Names of RFC 8693.
const (
	grantExchange   = "urn:ietf:params:oauth:grant-type:token-exchange"
	typeAccessToken = "urn:ietf:params:oauth:token-type:access_token"
	typeIDToken     = "urn:ietf:params:oauth:token-type:id_token"
)

// audienceCluster precedes <namespace>/<name> in the audience of a token that is good for one cluster.
const audienceCluster = "cluster:"

// lifetimeAtHub returns the longest life of a token that the hub accepts: one for all that the user may reach, or for one cluster. It accepts none for direct access,
// which are valid for longer.
func lifetimeAtHub(audience string) time.Duration {
	if cluster, one := strings.CutPrefix(audience, audienceCluster); audience == clientID || one && isCluster(cluster) {
		return token.Lifetime
	}
	return 0
}

// cluster returns the only one that a token is good for, empty for all.
func (v verified) cluster() string {
	cluster, one := strings.CutPrefix(v.Audience[0], audienceCluster) // Verify has checked that there is one audience
	if !one {
		return ""
	}
	return cluster
}

// bySession returns the claims and the user of a token that is good for everything. One of one cluster is good for its path only: it gives no other token, and
// ends no session.
func (s *Server) bySession(ctx context.Context, raw string) (verified, identity.Identity, error) {
	v, err := s.verify(ctx, raw, sha256.Sum256([]byte(raw)))
	if err != nil {
		return verified{}, identity.Identity{}, err
	}
	if v.cluster() != "" {
		return verified{}, identity.Identity{}, refusal.Forbidden("the token is good for one cluster only; sign in for another")
	}
	id, err := s.identify(ctx, v)
	return v, id, err
}

// narrow gives a token of one cluster for a token of all (RFC 8693). It ends with the one it was made of, belongs to the same session, and needs no object.
// Whether the user may reach the cluster is asked at each request, as for all tokens. A token for direct access is another thing: see giveDirect.
func (s *Server) narrow(ctx context.Context, current *loaded, fields url.Values) (granted, error) {
	audience, err := s.parseExchange(fields)
	if err != nil {
		return granted{}, err
	}
	v, id, err := s.bySession(ctx, fields.Get("subject_token"))
	if err != nil {
		if refused := refusal.Of(err); refused.Status().Code < http.StatusInternalServerError {
			return granted{}, invalid("subject_token: %s", refused.Status().Message) // RFC 8693, section 2.2.2
		}
		return granted{}, err
	}
	audit.From(ctx).Identified(audit.User{Name: id.User, UID: id.UID}, nil)
	if _, direct := s.direct.cluster(s.issuer, audience); direct {
		v.Audience = jwt.Audience{audience}
		return s.giveDirect(ctx, current, v, id)
	}
	now := s.now()
	signed, err := token.Sign(current.active, token.Claims{
		Issuer: s.issuer, Subject: v.Subject, Audience: jwt.Audience{audience}, Authenticated: v.Authenticated, Session: v.Session, UID: v.UID, Groups: id.Groups, Expiry: v.Expiry,
	}, now)
	if err != nil {
		return granted{}, err
	}
	return granted{Access: signed, Issued: typeAccessToken, Type: "Bearer", Expires: int(v.Expiry.Time().Sub(now) / time.Second)}, nil
}

// parseExchange checks what is asked for, and returns the audience of the token to give. What this issuer does not do is refused and never left out: a client
// that asks for less must not get more.
func (s *Server) parseExchange(fields url.Values) (audience string, err error) {
	audience = fields.Get("audience")
	cluster, one := strings.CutPrefix(audience, audienceCluster)
	_, direct := s.direct.cluster(s.issuer, audience)
	kind, wanted := fields.Get("subject_token_type"), fields.Get("requested_token_type")
	switch {
	case fields.Get("subject_token") == "":
		return "", invalid("subject_token is required")
	case kind != typeAccessToken && kind != typeIDToken:
		return "", invalid("subject_token_type must be %s or %s", typeAccessToken, typeIDToken)
	case fields.Has("actor_token") || fields.Has("actor_token_type"):
		return "", invalid("actor_token is not supported: a token is of one user")
	case fields.Has("requested_token_type") && wanted != typeAccessToken:
		return "", invalid("requested_token_type must be %s", typeAccessToken)
	case fields.Has("scope") && fields.Get("scope") != scopeOpenID:
		return "", &protocolError{"invalid_scope", "scope must be " + scopeOpenID + ", or be left out"}
	case fields.Has("resource"):
		return "", &protocolError{"invalid_target", "name the cluster by audience, and not by resource"}
	case !direct && (!one || !isCluster(cluster)):
		return "", &protocolError{"invalid_target", "audience must be " + audienceCluster + "<namespace>/<name>"}
	}
	return audience, nil
}
