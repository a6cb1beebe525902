// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"net/http"
	"net/url"
	"strings"
)

// Strip removes headers from a user's request: headers that are meant for the server that received the request, headers
// that only a trusted proxy may set, and headers that API servers do not use.
func Strip(h http.Header) {
	for name := range h {
		if staysHere(name) {
			delete(h, name)
		}
	}
}

func staysHere(name string) bool {
	switch http.CanonicalHeaderKey(name) {
	case "Authorization", "Cookie", "Cookie2", "Proxy-Authorization", // must not be disclosed to the member
		"Priority", // would change the order of streams in the tunnel
		// Origin and Referer refer to pages of the hub, which the member does not serve. SetOrigin sets an origin that
		// the member serves.
		"Origin", "Referer",
		// the server sends 100 Continue itself when it reads the body
		"Expect",
		"Forwarded", "X-Real-Ip", "X-Original-Url", "X-Rewrite-Url", // only a proxy may set these headers
		"Http2-Settings":
		return true
	}
	return hasFoldedPrefix(name, "X-Remote-") || hasFoldedPrefix(name, "X-Forwarded-")
}

// SetOrigin sets the Origin header of a request to open a WebSocket to the API server's own origin. API servers open a
// WebSocket for a watch only if the request has an Origin header, regardless of its value. The caller's Origin header
// names a page on another server. The server that received the request has already decided whether that page may open a
// WebSocket.
func SetOrigin(h http.Header, server *url.URL) {
	if asked := h["Upgrade"]; len(asked) > 0 && strings.EqualFold(asked[0], "websocket") {
		h["Origin"] = []string{server.Scheme + "://" + server.Host}
	}
}

// IgnoreUpgrade removes an upgrade request for a protocol that the Kubernetes API does not use. The API uses only
// WebSocket and SPDY/3.1. A server may ignore an upgrade request (RFC 9110, section 7.8), and API servers ignore h2c.
// If a request to upgrade to another protocol were forwarded, the connection could become a tunnel for unchecked
// requests.
func IgnoreUpgrade(h http.Header) {
	asked, asks := h["Upgrade"]
	known := len(asked) == 1 && (strings.EqualFold(asked[0], "websocket") || strings.EqualFold(asked[0], "SPDY/3.1"))
	if asks && !known {
		delete(h, "Upgrade")
	}
}

// hasFoldedPrefix ignores case, because headers that do not come from net/http are not in canonical form.
func hasFoldedPrefix(name, prefix string) bool {
	return len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix)
}

// StripAnswer removes headers from a response if they would affect the server's whole host rather than only the
// response.
func StripAnswer(h http.Header) {
	for _, name := range []string{"Set-Cookie", "Set-Cookie2", "Alt-Svc", "Strict-Transport-Security", "Clear-Site-Data",
		"Public-Key-Pins", "Nel", "Report-To", "Reporting-Endpoints", "Service-Worker-Allowed", "Set-Login",
		"Accept-Ch", "Critical-Ch", "Expect-Ct", "Origin-Agent-Cluster", "Public-Key-Pins-Report-Only",
		"Sec-Session-Registration", "Secure-Session-Registration", "Use-As-Dictionary"} {
		delete(h, name)
	}
}
