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
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/request"
)

// impersonatorKey is the extra that shows in a member's audit log who acts as another user. No caller can claim it.
const impersonatorKey = "cluster.drover.dev/impersonator"

// impersonate is the header by which a member's API server knows who calls.
func impersonate(id identity.Identity) http.Header {
	return impersonation{user: id.User, uid: id.UID, groups: id.Groups, extra: id.Extra}.header()
}

// impersonateOther is the header by which a member's API server knows whom the caller may act as. Whether a caller may
// act as a ServiceAccount the agent finds out by itself, so it is told both names.
func impersonateOther(caller identity.Identity, wanted *impersonation) http.Header {
	if wanted.account != nil {
		h := impersonate(caller)
		h[protocol.HeaderServiceAccount] = []string{wanted.user}
		return h
	}
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
		if !keepImpersonation && hasFoldedPrefix(name, "Impersonate-") {
			delete(h, name)
		}
	}
	request.Strip(h)
}
