// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"net/http"
	"net/textproto"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/request"
)

// impersonatorKey is the key of an extra field. In a member's audit log, this field shows which user is impersonating
// another user. Callers cannot set it.
const impersonatorKey = "cluster.drover.dev/impersonator"

// impersonate returns the header that identifies the caller to a member's API server.
func impersonate(id identity.Identity) http.Header {
	return impersonation{user: id.User, uid: id.UID, groups: id.Groups, extra: id.Extra}.header()
}

// impersonateOther returns the header that tells a member's API server which user the caller impersonates. If that
// user is a ServiceAccount, the header contains the names of both the caller and the account, because the agent
// itself checks whether the caller may impersonate the account.
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

// header returns the impersonation as a header with the canonical keys that an API server expects.
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

// extraHeader returns the name of the header for an extra field. Characters that are not allowed in header names are
// percent-encoded, and API servers decode them.
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

// isTokenByte reports whether c may appear unencoded in a header name, which is an RFC 9110 token. The percent sign
// must be encoded.
func isTokenByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
		strings.IndexByte("!#$&'*+-.^_`|~", c) >= 0
}

// clean removes fields from a caller's header that must not reach an API server or that an API server ignores. It
// keeps Impersonate-* if keepImpersonation is true.
func clean(h http.Header, keepImpersonation bool) {
	identity.RemoveToken(h)
	for name := range h {
		if !keepImpersonation && hasFoldedPrefix(name, "Impersonate-") {
			delete(h, name)
		}
	}
	request.Strip(h)
}

// checkForm refuses malformed or malicious requests to a Kubernetes API, whoever sent them.
func checkForm(r *http.Request, limits Limits) error {
	if r.Method == http.MethodConnect || r.Method == http.MethodTrace {
		return refusal.New(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
			fmt.Sprintf("the method %s is not supported", r.Method))
	}
	if err := checkConnection(r.Header); err != nil {
		return err
	}
	if r.ContentLength > limits.Body {
		return tooLarge(limits.Body)
	}
	return checkOrigin(r)
}

// checkConnection refuses a Connection header that lists an identity header. An intermediate proxy would remove the
// listed header, and the caller would be treated as another user (CVE-2021-31999).
func checkConnection(h http.Header) error {
	for name, values := range h {
		if !strings.EqualFold(name, "Connection") && !strings.EqualFold(name, "Proxy-Connection") {
			continue
		}
		for _, value := range values {
			for option := range strings.SplitSeq(value, ",") {
				if option = strings.Trim(option, " \t"); identifiesCaller(option) {
					return refusal.BadRequest(fmt.Sprintf("the %s header names %q, which must reach the cluster", name, option))
				}
			}
		}
	}
	return nil
}

// identifiesCaller reports whether a header, judging by its name, might identify the caller to an intermediate proxy.
func identifiesCaller(name string) bool {
	return hasFoldedPrefix(name, "Impersonate-") || hasFoldedPrefix(name, "X-Remote-") ||
		strings.EqualFold(name, "Authorization")
}

// checkOrigin refuses to open a WebSocket for a web page unless identity.MayOpen allows it.
func checkOrigin(r *http.Request) error {
	if request.IsUpgrade(r.Header) && !identity.MayOpen(r) {
		return refusal.Forbidden("a page of another host asks for a WebSocket; " +
			"only pages of the hub may open one, or clients with a bearer token and without a cookie")
	}
	return nil
}

func hasFoldedPrefix(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

func tooLarge(limit int64) *refusal.Error {
	return refusal.New(http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge,
		fmt.Sprintf("the body is larger than %d bytes; split it, or copy files with kubectl cp", limit))
}
