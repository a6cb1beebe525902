// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/request"
)

// checkForm refuses malformed or malicious requests to a Kubernetes API, no matter who sends them.
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

// identifiesCaller reports whether a proxy on the path might use a header to identify the caller, judging by the
// header's name.
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
