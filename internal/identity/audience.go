// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/untrusted"
)

// Local is the member that a request to the hub's own API server goes to.
const Local = "local"

// maxAudiences bounds the audiences of one token that the API server is asked about.
const maxAudiences = 8

// Audiences are what tokens of the hub's API server can be made for, besides that API server itself: the hub, which is
// all its members, and one member. The zero value knows none.
type Audiences struct {
	// Hub has the base URLs of the hub, without a slash at the end. Each is an audience.
	Hub []string
	// Clusters, between one of Hub and <namespace>/<name>, makes the audience of that member, which is its server in a
	// kubeconfig.
	Clusters string
	// Member returns the member that a request goes to: <namespace>/<name>, Local, and empty for all other paths.
	Member func(*http.Request) string
}

// of returns those audiences that a token says of itself to have. They are worth nothing before the API server has
// confirmed them.
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
	return slices.ContainsFunc(a.Hub, func(url string) bool { return audience == url || strings.HasPrefix(audience, url+a.Clusters) })
}

// admit refuses a request to what a token with these audiences is not made for. The hub's own API server is none of it:
// a token for that has its audience.
func (a Audiences) admit(r *http.Request, confirmed []string) error {
	made := func(suffix string) bool {
		return slices.ContainsFunc(confirmed, func(audience string) bool {
			return slices.Contains(a.Hub, strings.TrimSuffix(strings.TrimSuffix(audience, "/"), suffix))
		})
	}
	member := a.Member(r)
	switch {
	case member == Local:
		return refusal.Forbidden("the token is made for clusters, and not for the hub's own API; use a token without another audience")
	case made(""), member != "" && made(a.Clusters+member):
		return nil
	}
	return refusal.Forbidden(fmt.Sprintf("the token is made for %s only", strings.Join(confirmed, ", ")))
}

// Narrow refuses a request to what a token of another issuer than the hub's API server is not made for: one that names
// members by its audiences, and not the hub, is good for these members only. The audiences are those of a token that is
// verified.
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

// Named returns the path of the one member that the token of a request says of itself to be made for, without a slash
// at its end, and empty if there is none or more than one. It is no more than what the client wants: the token is not
// verified.
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
		if path, found := strings.CutPrefix(strings.TrimSuffix(known[0], "/"), url); found && strings.HasPrefix(path, a.Clusters) {
			return path
		}
	}
	return ""
}

// claims are what this package reads of a token in the form of a JWT.
type claims struct {
	Expires  float64   `json:"exp"`
	Audience audiences `json:"aud"`
}

// audiences is one string or a list of them (RFC 7519, section 4.1.3).
type audiences []string

// UnmarshalJSON takes both forms, and nothing else for none.
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

// unverified returns what a token says of itself, and nothing for one that is no JWT.
func unverified(token string) claims {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return claims{}
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return claims{}
	}
	var c claims
	if untrusted.JSON(payload, &c, untrusted.Small()) != nil {
		return claims{}
	}
	return c
}
