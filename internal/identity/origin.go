// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"net/http"
	"net/url"
	"strings"
)

// MayOpen reports whether the page that requests a WebSocket may open it. The page must belong to this host, or must
// have the token itself. Browsers allow every page to request a WebSocket, and add the credentials that they store for
// this host (CVE-2019-13209). They never add a bearer token, so a page that sends one must have the token. A request
// that also has a cookie is different, because a proxy in front of the hub may have created the token from the cookie.
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
