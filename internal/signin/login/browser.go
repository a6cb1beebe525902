// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/signin/keyring"
	"github.com/drover-dev/drover/internal/signin/oauth"
)

// Cookies. Their names start with __Host-, so that browsers accept them only from this host, over TLS, for all paths
// (RFC 6265bis).
const (
	// pageCookie binds login pages to the browser that opened them.
	pageCookie = "__Host-drover-sign-in"
	// knownCookie identifies the user who has signed in with the browser. It proves nothing else. It prevents an
	// attacker who guesses the user's password elsewhere from slowing down the user's own logins. Browsers also send it
	// when a provider's page redirects back to the hub.
	knownCookie = "__Host-drover-device"
)

const (
	// pageLifetime is how long a login page may stay open.
	pageLifetime = 10 * time.Minute
	// knownLifetime is the lifetime of knownCookie. The cookie becomes invalid earlier if the key that sealed it is
	// removed.
	knownLifetime = 30 * 24 * time.Hour
)

// browser describes the browser that sent a request.
type browser struct {
	// page is the digest of the browser's pageCookie, and source is the browser's address.
	page, source string
	known        knownBrowser
}

// knownBrowser is the sealed content of knownCookie. UID is the UID of the User, or of the account's provider. After a
// user has been recreated, that user has no known browsers.
type knownBrowser struct {
	ID   string    `json:"i"`
	User string    `json:"u"`
	UID  types.UID `json:"d"`
}

// bind returns the digest of the browser's pageCookie. It extends the cookie's lifetime to cover the page's. All
// open pages share one cookie.
func bind(w http.ResponseWriter, r *http.Request) string {
	var raw [sha256.Size]byte
	_, _ = rand.Read(raw[:]) // never fails
	value := base64.RawURLEncoding.EncodeToString(raw[:])
	if cookie, err := r.Cookie(pageCookie); err == nil && oauth.IsDigest(cookie.Value) {
		value = cookie.Value
	}
	setCookie(w, pageCookie, value, pageLifetime)
	return oauth.Digest(value)
}

// browserOf reads the cookies and the address of a browser.
func browserOf(r *http.Request, keys *keyring.Keys) browser {
	b := browser{source: limit.Source(r.RemoteAddr)}
	if cookie, err := r.Cookie(pageCookie); err == nil {
		b.page = oauth.Digest(cookie.Value)
	}
	if cookie, err := r.Cookie(knownCookie); err == nil {
		var known knownBrowser
		if keys.Open(keyring.PurposeBrowser, cookie.Value, &known) == nil {
			b.known = known
		}
	}
	return b
}

// opened reports whether a login page was opened in this browser recently enough.
func (b browser) opened(a authorization, now time.Time) bool {
	return b.page != "" && now.Sub(a.At) <= pageLifetime &&
		subtle.ConstantTimeCompare([]byte(b.page), []byte(a.Browser)) == 1
}

// counted returns the name under which the browser's failures are counted: the browser's own ID if a user has signed in
// with the browser before, and otherwise its address.
func (b browser) counted() string {
	if b.known.ID != "" {
		return "device " + b.known.ID
	}
	return b.source
}

func setCookie(w http.ResponseWriter, name, value string, lifetime time.Duration) {
	http.SetCookie(w, &http.Cookie{
		Name: name, Value: value, Path: "/", Secure: true, HttpOnly: true,
		SameSite: http.SameSiteLaxMode, MaxAge: int(lifetime.Seconds()),
	})
}

// randomID returns 128 random bits in hexadecimal.
func randomID() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails
	return hex.EncodeToString(raw[:])
}
