// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"net/http"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/drover-dev/drover/internal/protocol"
)

// reviewTimeout is the timeout for checking whether a user may impersonate a ServiceAccount.
const reviewTimeout = 8 * time.Second

// asAccount returns a request that acts as the ServiceAccount to be impersonated, provided that the member's RBAC
// allows the user to impersonate it. The agent checks each request, so that neither the hub alone nor the result of an
// earlier check allows a user to act as another user.
func (h *Handler) asAccount(r *http.Request, names []string) (*http.Request, *denial) {
	if h.reads {
		return nil, deny(http.StatusForbidden,
			"the agent of this cluster is read-only (its profile is ReadOnly): no user can act as a ServiceAccount")
	}
	if len(names) != 1 {
		return nil, deny(http.StatusForbidden, "a request must not name more than one ServiceAccount")
	}
	account, ok := protocol.ParseServiceAccount(names[0])
	if !ok {
		return nil, deny(http.StatusForbidden, "%q is not the name of a ServiceAccount", names[0])
	}
	if account.Reserved() || account.Namespace == h.Namespace {
		return nil, deny(http.StatusForbidden, "no user can act as %q: it is an account of Drover itself", names[0])
	}
	if d := h.mayImpersonate(r, account); d != nil {
		return nil, d
	}
	out := r.WithContext(r.Context()) // a shallow copy
	out.Header = make(http.Header, len(r.Header))
	for name, values := range r.Header {
		if !isImpersonation(name) {
			out.Header[name] = values
		}
	}
	out.Header[impersonateUser] = names // the API server adds the account's groups
	out.Header[protocol.HeaderImpersonator] = r.Header[impersonateUser]
	return out, nil
}

// mayImpersonate denies a request if its user is not allowed to impersonate an account, or if the review fails.
func (h *Handler) mayImpersonate(r *http.Request, account protocol.ServiceAccount) *denial {
	user := http.Header{}
	for name, values := range r.Header {
		if isImpersonation(name) && name != protocol.HeaderServiceAccount {
			user[name] = values
		}
	}
	caller := user.Get(impersonateUser) // check ensures that there is exactly one user
	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()
	url := strings.TrimRight(h.base.String(), "/") + protocol.PathAccessReview
	granted, err := protocol.ReviewAccess(ctx, h.proxy.Transport, url, user, authorizationv1.ResourceAttributes{
		Verb: "impersonate", Resource: "serviceaccounts", Namespace: account.Namespace, Name: account.Name,
	})
	switch {
	case err != nil:
		h.log.Info("cannot review the right to impersonate a ServiceAccount", "error", err.Error())
		return deny(http.StatusServiceUnavailable,
			"the cluster's API server did not say whether %q may impersonate %q: try again", caller, account.User())
	case !granted:
		return deny(http.StatusForbidden,
			"user %q may not impersonate %q: ask for the verb impersonate on that ServiceAccount in the cluster",
			caller, account.User())
	}
	return nil
}
