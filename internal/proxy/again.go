// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
)

// memberEvery is at which look the member is asked as well: rarely, since a look there is a request, while one at the
// hub mostly is answered from memory.
const memberEvery = 10

// lookAgain ends a call that lasts when its right is gone: who was let in once could otherwise read on for as long as
// nothing else ends it. The looks of calls that began together are spread. Call the function that it returns when the
// call is over.
func (h *Handler) lookAgain(r *http.Request, c *call, end context.CancelCauseFunc) (over func()) {
	looks := 0
	revoked, revoke := context.WithCancel(context.Background())
	c.revoked = revoked
	every := wait.Jitter(h.limits.Look*3/4, 1.0/3)
	c.look.start(every, func() {
		looks++
		if err := h.still(r, c, looks%memberEvery == 0); err != nil {
			audit.From(r.Context()).Refused(string(refusal.Of(err).Status().Reason))
			revoke() // a watch ends between two events
			if !c.endsItself.Load() {
				end(err)
			}
			return
		}
		c.look.resume()
	})
	return func() {
		c.look.end()
		revoke()
	}
}

// still returns the refusal with which a call that is under way would not be admitted now. What could not be found out
// ends nothing: while the hub's API server does not answer, no right is taken away either.
func (h *Handler) still(r *http.Request, c *call, askMember bool) error {
	id, err := h.authenticate(r)
	switch {
	case err == nil && !keeps(id, c.identity):
		return refusal.Unauthorized("the token's user has another name or fewer groups than when the request began; send it again")
	case err == nil:
	case !refused(err):
		return nil
	case !identity.Expired(r, time.Now()) || errors.Is(err, identity.ErrEnded):
		return err
	} // An expired token begins nothing, but a shell outlives it, as in Kubernetes. The rights of its user still count, and so does the end of a session.
	if c.target.local {
		return nil
	}
	if err := h.authorize(r.Context(), c.identity, c.target.cluster); refused(err) {
		return err
	}
	if err := h.stillServed(r.Context(), c); err != nil {
		return err
	}
	if askMember && c.info.Resource != "" {
		return h.stillInMember(r, c)
	}
	return nil
}

// stillServed returns why the hub does not serve the member at all any more. A member that is only not connected ends
// its calls itself.
func (h *Handler) stillServed(ctx context.Context, c *call) error {
	var unserved *refusal.Error
	if _, err := h.transport(ctx, c.target.cluster); errors.As(err, &unserved) {
		return unserved
	}
	return nil
}

// stillInMember asks the member whether the user may still be whom the call is served as, and whether they may still do
// what it does.
func (h *Handler) stillInMember(r *http.Request, c *call) error {
	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()
	if wanted, _ := parseImpersonation(r.Header); wanted != nil { // what cannot be parsed was not admitted
		if err := h.mayImpersonate(ctx, c, wanted); refused(err) {
			return err
		}
	}
	i := c.info
	allowed, err := c.reviewAccess(ctx, c.header, authorizationv1.ResourceAttributes{
		Verb: i.Verb, Group: i.Group, Version: i.Version, Resource: i.Resource, Subresource: i.Subresource, Namespace: i.Namespace, Name: i.Name,
	})
	if err != nil || allowed {
		return nil // without a response the member has not refused
	}
	return refusal.Forbidden("the right to the request was taken away in the cluster").About(c.target.cluster)
}

// keeps reports whether id is the user that was let in, and has lost no group.
func keeps(id, admitted identity.Identity) bool {
	return id.User == admitted.User && id.UID == admitted.UID &&
		!slices.ContainsFunc(admitted.Groups, func(group string) bool { return !slices.Contains(id.Groups, group) })
}

// refused reports whether err says no, and not that it could not be found out.
func refused(err error) bool {
	var e *refusal.Error
	if !errors.As(err, &e) {
		return false
	}
	code := e.Status().Code
	return code == http.StatusUnauthorized || code == http.StatusForbidden
}
