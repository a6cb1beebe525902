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

// Cookies. Because of the prefix __Host-, browsers accept these cookies only from this host, only over TLS, and for all
// paths (RFC 6265bis).
const (
	// pageCookie binds login pages to the browser that opened them.
	pageCookie = "__Host-drover-sign-in"
	// knownCookie identifies the last user who signed in with the browser. It does not authenticate the user. Failed
	// attempts from browsers without this cookie do not delay logins from a browser that has it. Browsers also send the
	// cookie when a provider's page redirects back to the hub.
	knownCookie = "__Host-drover-device"
)

const (
	// pageLifetime is how long a login page is valid.
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

// knownBrowser is the sealed content of knownCookie. UID is the UID of the User, or of the AuthProvider of a provider's
// user. The cookie is not valid for a User that has been recreated.
type knownBrowser struct {
	ID   string    `json:"i"`
	User string    `json:"u"`
	UID  types.UID `json:"d"`
}

// bind returns the digest of the browser's pageCookie. It sets the cookie if necessary, and extends its lifetime to
// pageLifetime. All open pages share one cookie.
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

// opened reports whether the login page for a request was opened in this browser and is still valid.
func (b browser) opened(a authorization, now time.Time) bool {
	return b.page != "" && now.Sub(a.At) <= pageLifetime &&
		subtle.ConstantTimeCompare([]byte(b.page), []byte(a.Browser)) == 1
}

// counted returns the key for counting the browser's failures. If a user has signed in with the browser before, the key
// is the browser's ID. Otherwise, the key is the browser's address.
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
