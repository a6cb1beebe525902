// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"net/http"
	"net/url"
	"strings"
)

// Strip removes from a user's header what is for the server that they came to, is a claim of theirs that no proxy has
// made, or is of no use to an API server.
func Strip(h http.Header) {
	for name := range h {
		if staysHere(name) {
			delete(h, name)
		}
	}
}

func staysHere(name string) bool {
	switch http.CanonicalHeaderKey(name) {
	case "Authorization", "Cookie", "Cookie2", "Proxy-Authorization", // not the member's business
		"Priority",          // would change the order of streams in the tunnel
		"Origin", "Referer", // name the hub's pages, which the member does not serve; SetOrigin names one that it does
		"Expect",                                                    // the server itself says 100 when it reads the body
		"Forwarded", "X-Real-Ip", "X-Original-Url", "X-Rewrite-Url", // claims of proxies that are none
		"Http2-Settings":
		return true
	}
	return hasFoldedPrefix(name, "X-Remote-") || hasFoldedPrefix(name, "X-Forwarded-")
}

// SetOrigin makes a request to open a WebSocket one of the API server's own pages. API servers open a WebSocket for a
// watch only if the request has an Origin, whatever it is. The caller's own names a page of another server: whether
// that page may open a WebSocket is for the server that the caller came to.
func SetOrigin(h http.Header, server *url.URL) {
	if asked := h["Upgrade"]; len(asked) > 0 && strings.EqualFold(asked[0], "websocket") {
		h["Origin"] = []string{server.Scheme + "://" + server.Host}
	}
}

// IgnoreUpgrade removes a wish for a protocol that is not one of the Kubernetes API's: WebSocket and SPDY/3.1. A server
// may ignore a wish to upgrade (RFC 9110, section 7.8), and API servers ignore h2c. Passed on, it could become a tunnel
// for requests that are not checked.
func IgnoreUpgrade(h http.Header) {
	asked, asks := h["Upgrade"]
	known := len(asked) == 1 && (strings.EqualFold(asked[0], "websocket") || strings.EqualFold(asked[0], "SPDY/3.1"))
	if asks && !known {
		delete(h, "Upgrade")
	}
}

// hasFoldedPrefix ignores case, since a header that did not come through net/http may have any.
func hasFoldedPrefix(name, prefix string) bool {
	return len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix)
}

// StripAnswer removes from the header of an answer what would act on the server's host rather than on the answer.
func StripAnswer(h http.Header) {
	for _, name := range []string{"Set-Cookie", "Set-Cookie2", "Alt-Svc", "Strict-Transport-Security", "Clear-Site-Data",
		"Public-Key-Pins"} {
		delete(h, name)
	}
}
