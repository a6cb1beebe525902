// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/url"
	"slices"
	"strings"
)

// SignIn is how users sign in at the hub. Off by default.
type SignIn struct {
	// Issuer is the one of Server.URLs that users sign in at, which is in all their tokens. Empty turns sign-in off.
	Issuer string `json:"issuer,omitempty"`
}

// On reports whether users can sign in.
func (s SignIn) On() bool { return s.Issuer != "" }

func (s *SignIn) validate(urls []string, add func(field, format string, args ...any)) {
	if !s.On() {
		return
	}
	if !slices.Contains(urls, s.Issuer) {
		add("signIn.issuer", "%q is none of server.urls", s.Issuer)
	}
	// The login compares it with the Origin that browsers send.
	if u, err := url.Parse(s.Issuer); err != nil || s.Issuer != strings.ToLower(s.Issuer) || u.Port() == "443" || strings.HasSuffix(u.Host, ":") {
		add("signIn.issuer", "%q is not as browsers write it: use lower case, and leave out the port 443", s.Issuer)
	}
}
