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

// SignIn is how users sign in at the hub. Off by default.
type SignIn struct {
	// Issuer is the one of Server.URLs that users sign in at, which is in all their tokens. Empty turns sign-in off.
	Issuer string `json:"issuer,omitempty"`
	// Tokens are those that users make for scripts.
	Tokens Tokens `json:"tokens,omitempty"`
	// SessionLifetime is how long a user who signed in can refresh their tokens, from the login on. Default 12h.
	SessionLifetime metav1.Duration `json:"sessionLifetime,omitempty"`
	// SessionIdleTimeout is how long a refresh token that is not used is valid. Default 4h, or SessionLifetime if that is
	// shorter.
	SessionIdleTimeout metav1.Duration `json:"sessionIdleTimeout,omitempty"`
}

// Bounds of sessions: a token lives for 10 minutes anyway, and to be asked for a password once a month is no burden.
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

// Tokens are those that users make for scripts.
type Tokens struct {
	// MaxTTL is the longest that one is valid. A shorter one than before also ends those that there are. Default 2160h, 90
	// days.
	MaxTTL metav1.Duration `json:"maxTTL,omitempty"`
}

// Bounds of Tokens.MaxTTL: none is valid without end.
const (
	minTokenTTL = time.Minute
	maxTokenTTL = 366 * 24 * time.Hour
)

// On reports whether users can sign in.
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
	// The login compares it with the Origin that browsers send.
	if u, err := url.Parse(s.Issuer); err != nil || s.Issuer != strings.ToLower(s.Issuer) || u.Port() == "443" || strings.HasSuffix(u.Host, ":") {
		add("signIn.issuer", "%q is not as browsers write it: use lower case, and leave out the port 443", s.Issuer)
	}
}
