// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"maps"
	"net/url"
	"strings"
	"testing"

	"github.com/drover-dev/drover/internal/signin/direct"
	"github.com/drover-dev/drover/internal/signin/oauth"
)

// GHSA-7qjx-gp9h-65qj: an exchange issues a token that a login would not issue.
func TestParametersOfAnExchangeAreChecked(t *testing.T) {
	good := url.Values{
		"grant_type": {grantExchange}, "client_id": {oauth.ClientID}, "subject_token": {"x"},
		"subject_token_type": {typeAccessToken}, "audience": {"cluster:team/prod"},
	}
	s := New(Options{Issuer: "https://hub", Direct: &direct.Access{URL: "https://hub"}})
	for name, tt := range map[string]struct {
		change func(url.Values)
		want   string
	}{
		"a cluster":       {func(url.Values) {}, ""},
		"an ID token":     {func(v url.Values) { v.Set("subject_token_type", typeIDToken) }, ""},
		"an access token": {func(v url.Values) { v.Set("requested_token_type", typeAccessToken) }, ""},
		"its scope":       {func(v url.Values) { v.Set("scope", "openid") }, ""},
		"no token":        {func(v url.Values) { v.Del("subject_token") }, "invalid_request"},
		"no type":         {func(v url.Values) { v.Del("subject_token_type") }, "invalid_request"},
		"a refresh token": {
			func(v url.Values) { v.Set("subject_token_type", "urn:ietf:params:oauth:token-type:refresh_token") },
			"invalid_request",
		},
		"SAML": {
			func(v url.Values) { v.Set("subject_token_type", "urn:ietf:params:oauth:token-type:saml2") }, "invalid_request",
		},
		"for a refresh token": {
			func(v url.Values) { v.Set("requested_token_type", "urn:ietf:params:oauth:token-type:refresh_token") },
			"invalid_request",
		},
		"for nothing":          {func(v url.Values) { v.Set("requested_token_type", "") }, "invalid_request"},
		"an actor":             {func(v url.Values) { v.Set("actor_token", "x") }, "invalid_request"},
		"the type of an actor": {func(v url.Values) { v.Set("actor_token_type", "x") }, "invalid_request"},
		"a resource": {
			func(v url.Values) { v.Set("resource", "https://hub/k8s/clusters/team/prod") }, "invalid_target",
		},
		"no audience":          {func(v url.Values) { v.Del("audience") }, "invalid_target"},
		"the hub":              {func(v url.Values) { v.Set("audience", "kubectl") }, "invalid_target"},
		"a cluster of no form": {func(v url.Values) { v.Set("audience", "cluster:prod") }, "invalid_target"},
		"all clusters":         {func(v url.Values) { v.Set("audience", "cluster:*/*") }, "invalid_target"},
		"a path": {
			func(v url.Values) { v.Set("audience", "cluster:team/../prod") }, "invalid_target",
		},
		"three parts": {
			func(v url.Values) { v.Set("audience", "cluster:team/prod/x") }, "invalid_target",
		},
		"a name in capitals": {
			func(v url.Values) { v.Set("audience", "cluster:Team/prod") }, "invalid_target",
		},
		"direct access where there is none": {
			func(v url.Values) { v.Set("audience", "https://hub/k8s/clusters/team/prod") }, "invalid_target",
		},
		"a cluster without prefix": {func(v url.Values) { v.Set("audience", "team/prod") }, "invalid_target"},
		"to go on offline": {
			func(v url.Values) { v.Set("scope", "openid offline_access") }, "invalid_scope",
		},
	} {
		fields := maps.Clone(good)
		tt.change(fields)
		audience, err := s.parseExchange(fields)
		code, _, _ := strings.Cut(errorText(err), ":")
		if code != tt.want || (err == nil) != (audience == "cluster:team/prod") {
			t.Errorf("%s: %q, %v; want %q", name, audience, err, tt.want)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
