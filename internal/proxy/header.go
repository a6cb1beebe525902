// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"net/http"
	"net/textproto"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/drover-dev/drover/internal/identity"
)

// impersonatorKey is the extra that shows in a member's audit log who acts as another user. No caller can claim it.
const impersonatorKey = "cluster.drover.dev/impersonator"

// impersonate is the header by which a member's API server knows who calls.
func impersonate(id identity.Identity) http.Header {
	return impersonation{user: id.User, uid: id.UID, groups: id.Groups, extra: id.Extra}.header()
}

// impersonateOther is the header by which a member's API server knows whom the caller may act as.
func impersonateOther(caller identity.Identity, wanted *impersonation) http.Header {
	h := wanted.header()
	h[extraHeader(impersonatorKey)] = []string{caller.User}
	return h
}

// header has the canonical keys that an API server looks for.
func (i impersonation) header() http.Header {
	h := make(http.Header, 3+len(i.extra))
	h[authenticationv1.ImpersonateUserHeader] = []string{i.user}
	if len(i.groups) > 0 {
		h[authenticationv1.ImpersonateGroupHeader] = i.groups
	}
	if i.uid != "" {
		h[authenticationv1.ImpersonateUIDHeader] = []string{i.uid}
	}
	for key, values := range i.extra {
		h[extraHeader(key)] = values
	}
	return h
}

// extraHeader is the header of an extra. What no header's name can have is percent-encoded, as API servers decode it.
func extraHeader(key string) string {
	var b strings.Builder
	b.WriteString(authenticationv1.ImpersonateUserExtraHeaderPrefix)
	for _, c := range []byte(key) {
		if isTokenByte(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return textproto.CanonicalMIMEHeaderKey(b.String())
}

// isTokenByte reports whether c can stand for itself in a header's name: a token of RFC 9110 without the percent sign.
func isTokenByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("!#$&'*+-.^_`|~", c) >= 0
}

// clean removes from a caller's header what must not reach an API server, or is of no use to it. Impersonate-* stays
// if keepImpersonation says so.
func clean(h http.Header, keepImpersonation bool) {
	identity.RemoveToken(h)
	for name := range h {
		switch {
		case hasFoldedPrefix(name, "Impersonate-"):
			if !keepImpersonation {
				delete(h, name)
			}
		case staysHere(name):
			delete(h, name)
		}
	}
}

// staysHere reports whether a caller's header of that name is not sent on: it is for the hub only, or of no use.
func staysHere(name string) bool {
	switch http.CanonicalHeaderKey(name) {
	case "Authorization", "Cookie", "Cookie2", "Proxy-Authorization", // not the member's business
		"Priority",          // would change the order of streams in the tunnel
		"Origin", "Referer", // name the hub's pages, which the member does not serve
		"Expect",                                                    // the hub itself says 100 when it reads the body
		"Forwarded", "X-Real-Ip", "X-Original-Url", "X-Rewrite-Url", // claims of proxies that are none
		"Http2-Settings":
		return true
	}
	return hasFoldedPrefix(name, "X-Remote-") || hasFoldedPrefix(name, "X-Forwarded-")
}

// cleanAnswer takes out of an answer what would act on the hub's host rather than on the answer.
func cleanAnswer(h http.Header) {
	for _, name := range []string{"Set-Cookie", "Set-Cookie2", "Alt-Svc", "Strict-Transport-Security", "Clear-Site-Data", "Public-Key-Pins"} {
		delete(h, name)
	}
}
