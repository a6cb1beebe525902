// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"fmt"
	"net/http"
	"net/textproto"
	"strings"

	"github.com/drover-dev/drover/internal/baseline"
	"github.com/drover-dev/drover/internal/protocol"
)

// Kubernetes impersonation headers.
const (
	impersonatePrefix = "Impersonate-"
	impersonateUser   = "Impersonate-User"
	impersonateGroup  = "Impersonate-Group"
	impersonateUID    = "Impersonate-Uid"
	impersonateExtra  = "Impersonate-Extra-"

	groupAuthenticated = "system:authenticated"
	systemPrefix       = "system:"
	kubeadmPrefix      = "kubeadm:" // kubeadm:cluster-admins has the cluster-admin role
)

// denial is the reason why a request is not forwarded.
type denial struct {
	status  int
	message string
}

func deny(status int, format string, args ...any) *denial {
	return &denial{status: status, message: fmt.Sprintf(format, args...)}
}

// check is the second line of defense: it denies requests that a correct hub never sends. The agent is allowed to
// impersonate any user. A request without a user would run as the agent itself, and a request as a system user would
// have more rights than Drover ever grants. Values must reach the API server exactly as they were checked, so check
// denies values that would be trimmed in transit.
func check(h http.Header) *denial {
	if d := checkConnection(h); d != nil {
		return d
	}
	for name, values := range h {
		if !isImpersonation(name) {
			continue
		}
		if !known(name) {
			return deny(http.StatusBadRequest, "the header %s is not a header that the API server knows", name)
		}
		for _, v := range values {
			if v != strings.TrimSpace(v) || v == "" {
				return deny(http.StatusBadRequest, "the header %s is empty or has leading or trailing blanks", name)
			}
		}
	}
	users, groups := h[impersonateUser], h[impersonateGroup]
	if len(users) != 1 {
		return deny(http.StatusForbidden, "a request must name exactly one user, but this one names %d", len(users))
	}
	if len(h[impersonateUID]) > 1 {
		return deny(http.StatusForbidden, "a request must not name more than one UID")
	}
	if strings.HasPrefix(users[0], systemPrefix) {
		return deny(http.StatusForbidden, "system users are not served through the hub: use the cluster's own credentials")
	}
	if baseline.IsUser(users[0]) {
		return deny(http.StatusForbidden, "only the agent itself acts as the user of a Baseline")
	}
	for _, g := range groups {
		if strings.HasPrefix(g, systemPrefix) && g != groupAuthenticated || strings.HasPrefix(g, kubeadmPrefix) {
			return deny(http.StatusForbidden, "the group %q is not served through the hub: use the cluster's own credentials", g)
		}
	}
	return nil
}

// checkConnection denies a Connection header that would cause identity headers to be removed before the request
// reaches the API server (CVE-2021-31999).
func checkConnection(h http.Header) *denial {
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			name = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))
			if isImpersonation(name) || name == "Authorization" {
				return deny(http.StatusBadRequest, "the Connection header must not name %s", name)
			}
		}
	}
	return nil
}

// isImpersonation reports whether a header is an impersonation header. It ignores case, because header names that
// net/http did not parse may use any case.
func isImpersonation(name string) bool {
	return len(name) >= len(impersonatePrefix) && strings.EqualFold(name[:len(impersonatePrefix)], impersonatePrefix)
}

func known(name string) bool {
	switch name {
	case impersonateUser, impersonateGroup, impersonateUID, protocol.HeaderServiceAccount:
		return true
	}
	return strings.HasPrefix(name, impersonateExtra) && len(name) > len(impersonateExtra)
}

// checkRead denies all requests except reads. It is used in read-only agents. It also denies upgrades, because an
// upgraded connection could carry any data.
func checkRead(r *http.Request) *denial {
	if (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.Header.Get("Upgrade") == "" {
		return nil
	}
	return deny(http.StatusForbidden,
		"the agent of this cluster is read-only (its profile is ReadOnly) and serves only get, list, watch and logs: use "+
			"the cluster's own credentials for anything else")
}
