// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/untrusted"
)

// Local is the name of the hub's own API server, used where the name of a member is expected.
const Local = "local"

// maxAudiences is the maximum number of audiences of a token that the API server is asked to confirm.
const maxAudiences = 8

// Audiences are the audiences for which the hub's API server issues tokens, other than the API server itself. An
// audience is either the hub, which includes all its members, or a single member. The zero value contains no audiences.
type Audiences struct {
	// Hub holds the base URLs of the hub, without a trailing slash. Each URL is an audience.
	Hub []string
	// Clusters is the path between a URL in Hub and <namespace>/<name>. Together, the three parts form the member's
	// audience. The audience is also the member's server in a kubeconfig.
	Clusters string
	// Member returns the destination of a request: the member's <namespace>/<name>, Local, or an empty string for all
	// other paths.
	Member func(*http.Request) string
}

// of returns the audiences that are in both a and the token. The result must not be trusted until the API server has
// confirmed it.
func (a Audiences) of(token string) []string {
	var known []string
	for _, audience := range unverified(token).Audience {
		if a.knows(audience) && len(known) < maxAudiences {
			known = append(known, audience)
		}
	}
	return known
}

func (a Audiences) knows(audience string) bool {
	audience = strings.TrimSuffix(audience, "/")
	return slices.ContainsFunc(a.Hub, func(url string) bool {
		return audience == url || strings.HasPrefix(audience, url+a.Clusters)
	})
}

// admit refuses a request to a destination that is not among the confirmed audiences of its token. The hub's own API
// server is never among them, because a token for that server has the server's own audience.
func (a Audiences) admit(r *http.Request, confirmed []string) error {
	made := func(suffix string) bool {
		return slices.ContainsFunc(confirmed, func(audience string) bool {
			return slices.Contains(a.Hub, strings.TrimSuffix(strings.TrimSuffix(audience, "/"), suffix))
		})
	}
	member := a.Member(r)
	switch {
	case member == Local:
		return refusal.Forbidden("the token is made for clusters, and not for the hub's own API; " +
			"use a token without another audience")
	case made(""), member != "" && made(a.Clusters+member):
		return nil
	}
	return refusal.Forbidden(fmt.Sprintf("the token is made for %s only", strings.Join(confirmed, ", ")))
}

// Narrow refuses a request if its token was issued by an issuer other than the hub's API server, and has audiences that
// do not include the destination. The token must have been verified. If the audiences name members, but not the hub,
// the token is valid only for these members.
func (a Audiences) Narrow(r *http.Request, audiences []string) error {
	var known []string
	for _, audience := range audiences {
		if slices.Contains(a.Hub, strings.TrimSuffix(audience, "/")) {
			return nil
		}
		if a.knows(audience) {
			known = append(known, audience)
		}
	}
	if len(known) == 0 {
		return nil
	}
	return a.admit(r, known)
}

// Named returns the path of a member, without a trailing slash, if the audiences in the request's token name exactly
// one member. Otherwise, it returns an empty string. The token is not verified, so the result shows only what the
// client intends.
func (a Audiences) Named(r *http.Request) string {
	token, err := Token(r)
	if err != nil {
		return ""
	}
	known := a.of(token)
	if len(known) != 1 {
		return ""
	}
	for _, url := range a.Hub {
		if path, found := strings.CutPrefix(strings.TrimSuffix(known[0], "/"), url); found &&
			strings.HasPrefix(path, a.Clusters) {
			return path
		}
	}
	return ""
}

// claims are the claims that this package reads from a JWT.
type claims struct {
	Expires  float64   `json:"exp"`
	Audience audiences `json:"aud"`
}

// audiences is decoded from a string or a list of strings (RFC 7519, section 4.1.3).
type audiences []string

// UnmarshalJSON decodes a string or a list of strings, and ignores any other value.
func (a *audiences) UnmarshalJSON(data []byte) error {
	var one string
	if untrusted.JSON(data, &one, untrusted.Small()) == nil {
		*a = audiences{one}
		return nil
	}
	var list []string
	if untrusted.JSON(data, &list, untrusted.Small()) == nil {
		*a = list
	}
	return nil
}

// unverified returns the claims of a token without verifying them. It returns no claims if the token is not a JWT.
func unverified(token string) claims {
	var c claims
	if untrusted.Claims(token, &c, untrusted.Small()) != nil {
		return claims{}
	}
	return c
}
