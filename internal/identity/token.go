// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"

	"github.com/drover-dev/drover/internal/identity/refusal"
)

// MaxToken is the maximum size of a token, in bytes.
const MaxToken = 64 << 10

// bearerProtocol is the prefix of a token that a WebSocket client sends as a subprotocol. kube-apiserver accepts such
// tokens from browsers, too.
const bearerProtocol = "base64url.bearer.authorization.k8s.io."

const headerProtocol = "Sec-Websocket-Protocol"

// Token returns the bearer token from the Authorization header of a request or from a WebSocket subprotocol. It ignores
// cookies and the query. If the request does not contain exactly one well-formed token, Token returns a refusal with
// status 401.
func Token(r *http.Request) (string, error) {
	token, err := token(r)
	switch {
	case err != nil:
		return "", err
	case len(token) > MaxToken:
		return "", refusal.Unauthorized("the token is longer than 64 KiB")
	case token == "" || strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c == 0x7f }):
		return "", refusal.Unauthorized("the token is empty or contains invalid characters")
	}
	return token, nil
}

func token(r *http.Request) (string, error) {
	headers := r.Header["Authorization"]
	switch {
	case len(headers) > 1:
		return "", refusal.Unauthorized("the request has more than one Authorization header; send one")
	case len(headers) == 1:
		scheme, token, found := strings.Cut(strings.Trim(headers[0], " \t"), " ")
		if !found || !strings.EqualFold(scheme, "Bearer") {
			return "", refusal.Unauthorized("the Authorization header is not of the form \"Bearer <token>\"; " +
				"other schemes are not accepted")
		}
		return strings.TrimLeft(token, " "), nil
	case isWebSocket(r):
		return protocolToken(r.Header)
	}
	return "", noToken()
}

func noToken() error {
	return refusal.Unauthorized("the request has no bearer token; log in, or give your kubeconfig a user with a token")
}

// protocolToken returns the token that the client passed as one of the subprotocols. There must be another subprotocol,
// because the server has to select one in its response.
func protocolToken(h http.Header) (string, error) {
	var encoded string
	var others int
	for _, value := range h[headerProtocol] {
		for protocol := range strings.SplitSeq(value, ",") {
			rest, isToken := strings.CutPrefix(strings.TrimSpace(protocol), bearerProtocol)
			switch {
			case !isToken:
				others++
			case encoded != "":
				return "", refusal.Unauthorized("the request has more than one token among its subprotocols; send one")
			default:
				encoded = rest
			}
		}
	}
	if encoded == "" {
		return "", noToken()
	}
	if others == 0 {
		return "", refusal.Unauthorized("the request has no subprotocol besides its token; send both")
	}
	token, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil || !utf8.Valid(token) {
		return "", refusal.Unauthorized("the token among the subprotocols is not base64url without padding")
	}
	return string(token), nil
}

// ErrEnded is returned when the session of a token has been revoked: by the user, by an administrator, or because one
// of its tokens was stolen. Unlike expiry, revocation also ends requests in progress.
var ErrEnded = errors.New("the session of the token was revoked")

// Expired reports whether a request's token has expired according to its own claims. The claims are reliable only if
// the token has been accepted before. A token without an expiry time never expires.
func Expired(r *http.Request, now time.Time) bool {
	token, err := Token(r)
	if err != nil {
		return false
	}
	expires := unverified(token).Expires
	return expires > 0 && now.After(time.Unix(int64(expires), 0))
}

// RemoveToken removes from a header every token that Token could have found. It leaves other subprotocols unchanged.
func RemoveToken(h http.Header) {
	delete(h, "Authorization")
	values, ok := h[headerProtocol]
	if !ok || !strings.Contains(strings.Join(values, ","), bearerProtocol) {
		return
	}
	var kept []string
	for _, value := range values {
		for protocol := range strings.SplitSeq(value, ",") {
			if protocol = strings.TrimSpace(protocol); !strings.HasPrefix(protocol, bearerProtocol) {
				kept = append(kept, protocol)
			}
		}
	}
	delete(h, headerProtocol)
	if len(kept) > 0 {
		h.Set(headerProtocol, strings.Join(kept, ", "))
	}
}

func isWebSocket(r *http.Request) bool {
	return httpguts.HeaderValuesContainsToken(r.Header["Connection"], "Upgrade") &&
		strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// MayOpen reports whether the page that requests a WebSocket may open it. The page must belong to this host, or must
// know the token. Browsers allow every page to request a WebSocket, and add the credentials that they store for this
// host (CVE-2019-13209). They never add a bearer token, so a page that sends one must know the token. This does not
// apply to a request that also has a cookie, because a proxy in front of the hub might have created the token from the
// cookie.
func MayOpen(r *http.Request) bool {
	origins := r.Header["Origin"]
	if len(origins) == 0 {
		return true // not a browser
	}
	if len(r.Header["Cookie"]) == 0 {
		if _, err := Token(r); err == nil {
			return true
		}
	}
	origin, err := url.Parse(origins[0])
	return err == nil && len(origins) == 1 && origin.Host != "" &&
		strings.EqualFold(withoutDefaultPort(origin.Scheme, origin.Host), withoutDefaultPort(origin.Scheme, r.Host))
}

// withoutDefaultPort returns a host without the default port of a scheme. Browsers omit that port in Origin. Other
// clients may include it there and omit it in Host.
func withoutDefaultPort(scheme, host string) string {
	switch strings.ToLower(scheme) {
	case "https", "wss":
		return strings.TrimSuffix(host, ":443")
	case "http", "ws":
		return strings.TrimSuffix(host, ":80")
	}
	return host
}
