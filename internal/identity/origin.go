// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"net/http"
	"net/url"
	"strings"
)

// MayOpen reports whether the page that asks for a WebSocket may open one: a page of this host, or one that has the
// token itself. Browsers let every page ask, and add to the request what they keep for this host (CVE-2019-13209). They
// add no bearer token, so a page that sends one has it. A cookie beside it is another matter: a proxy in front of the
// hub may have made the token of the cookie.
func MayOpen(r *http.Request) bool {
	origins := r.Header["Origin"]
	if len(origins) == 0 {
		return true // no browser
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

// withoutDefaultPort returns a host without the port that a scheme implies. Browsers leave that port out of Origin;
// other clients may not, and leave it out of Host.
func withoutDefaultPort(scheme, host string) string {
	switch strings.ToLower(scheme) {
	case "https", "wss":
		return strings.TrimSuffix(host, ":443")
	case "http", "ws":
		return strings.TrimSuffix(host, ":80")
	}
	return host
}
