// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/url"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SignIn configures how users sign in to the hub. It is off by default.
type SignIn struct {
	// Issuer is one of Server.URLs. Users sign in at this URL, and all their tokens contain it as the issuer. If it is
	// empty, sign-in is off.
	Issuer string `json:"issuer,omitempty"`
	// Tokens configures the tokens that users create for scripts.
	Tokens Tokens `json:"tokens,omitempty"`
	// SessionLifetime is how long users can refresh their tokens after a login. Default: 12h.
	SessionLifetime metav1.Duration `json:"sessionLifetime,omitempty"`
	// SessionIdleTimeout is how long an unused refresh token is valid. Default: 4h, or SessionLifetime if that is shorter.
	SessionIdleTimeout metav1.Duration `json:"sessionIdleTimeout,omitempty"`
}

// Limits for the lifetime of sessions. A lifetime of less than 10 minutes would have no effect, because tokens are
// valid for 10 minutes. Users must sign in at least once a month.
const (
	minSession = 10 * time.Minute
	maxSession = 30 * 24 * time.Hour
)

func (s *SignIn) setDefaults() {
	s.Issuer = strings.TrimRight(s.Issuer, "/")
	setDefault(&s.SessionLifetime.Duration, 12*time.Hour)
	setDefault(&s.SessionIdleTimeout.Duration, min(4*time.Hour, s.SessionLifetime.Duration))
	setDefault(&s.Tokens.MaxTTL.Duration, 90*24*time.Hour)
}

// Tokens configures the tokens that users create for scripts.
type Tokens struct {
	// MaxTTL is the maximum lifetime of a token. Reducing it also shortens the lifetime of existing tokens. Default:
	// 2160h (90 days).
	MaxTTL metav1.Duration `json:"maxTTL,omitempty"`
}

// Limits for Tokens.MaxTTL. No token is valid forever.
const (
	minTokenTTL = time.Minute
	maxTokenTTL = 366 * 24 * time.Hour
)

// On reports whether sign-in is on.
func (s SignIn) On() bool { return s.Issuer != "" }

func (s *SignIn) validate(urls []string, add func(field, format string, args ...any)) {
	if s.SessionLifetime.Duration < minSession || s.SessionLifetime.Duration > maxSession {
		add("signIn.sessionLifetime", "want %s to %s", minSession, maxSession)
	}
	if s.SessionIdleTimeout.Duration < minSession || s.SessionIdleTimeout.Duration > s.SessionLifetime.Duration {
		add("signIn.sessionIdleTimeout", "want %s to signIn.sessionLifetime", minSession)
	}
	if !s.On() {
		return
	}
	if ttl := s.Tokens.MaxTTL.Duration; ttl < minTokenTTL || ttl > maxTokenTTL {
		add("signIn.tokens.maxTTL", "want %s to %s", minTokenTTL, maxTokenTTL)
	}
	if !slices.Contains(urls, s.Issuer) {
		add("signIn.issuer", "%q is none of server.urls", s.Issuer)
	}
	// The login compares the issuer with the Origin header that browsers send.
	if u, err := url.Parse(s.Issuer); err != nil || s.Issuer != strings.ToLower(s.Issuer) || u.Port() == "443" ||
		strings.HasSuffix(u.Host, ":") {
		add("signIn.issuer", "%q is not in the form that browsers use: write it in lower case and without the port 443",
			s.Issuer)
	}
}
