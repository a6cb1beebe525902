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

// memberEvery is the number of checks after which the member is also queried. Other checks use only the hub's data,
// most of which is in memory. Querying the member requires a request.
const memberEvery = 10

// recheckRegularly ends a long-running call when the user loses the right to it. Otherwise, an admitted user could
// continue to read for as long as the call lasts. The checks of calls that started at the same time are spread out. The
// returned function must be called when the call ends.
func (h *Handler) recheckRegularly(r *http.Request, c *call, end context.CancelCauseFunc) (over func()) {
	looks := 0
	revoked, revoke := context.WithCancel(context.Background())
	c.revoked = revoked
	every := wait.Jitter(h.limits.Look*3/4, 1.0/3)
	c.look.start(every, func() {
		looks++
		if err := h.recheck(r, c, looks%memberEvery == 0); err != nil {
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

// recheck returns an error if a running call would no longer be admitted. If a check itself fails, the call continues:
// while the hub's API server is unavailable, no right can be revoked.
func (h *Handler) recheck(r *http.Request, c *call, askMember bool) error {
	id, err := h.authenticate(r)
	switch {
	case err == nil && !keepsIdentity(id, c.identity):
		return refusal.Unauthorized("the token's user has another name or fewer groups than at the start of the request; " +
			"send the request again")
	case err == nil:
	case !refused(err):
		return nil
	case !identity.Expired(r, time.Now()) || errors.Is(err, identity.ErrEnded):
		return err
	}
	// As in Kubernetes, an expired token cannot start a request but does not end a running shell. The session and the
	// user's rights are still checked.
	if c.target.local {
		return nil
	}
	if err := h.authorize(r.Context(), c.identity, c.target.cluster); refused(err) {
		return err
	}
	if err := h.recheckServed(r.Context(), c); err != nil {
		return err
	}
	if askMember && c.info.Resource != "" {
		return h.recheckInMember(r, c)
	}
	return nil
}

// recheckServed returns an error if the hub no longer serves the member at all. Calls to a disconnected member end
// without this check.
func (h *Handler) recheckServed(ctx context.Context, c *call) error {
	var unserved *refusal.Error
	if _, err := h.transport(ctx, c.target.cluster); errors.As(err, &unserved) {
		return unserved
	}
	return nil
}

// recheckInMember checks in the member whether the caller may still impersonate the call's user, and whether that
// user may still make the call.
func (h *Handler) recheckInMember(r *http.Request, c *call) error {
	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()
	if wanted, _ := parseImpersonation(r.Header); wanted != nil { // a request that cannot be parsed is never admitted
		if err := h.mayImpersonate(ctx, c, wanted); refused(err) {
			return err
		}
	}
	i := c.info
	allowed, err := c.reviewAccess(ctx, c.header, authorizationv1.ResourceAttributes{
		Verb: i.Verb, Group: i.Group, Version: i.Version, Resource: i.Resource, Subresource: i.Subresource,
		Namespace: i.Namespace, Name: i.Name,
	})
	if err != nil || allowed {
		return nil // an unreachable member has not refused anything
	}
	return refusal.Forbidden("the cluster has taken away the right to this request").About(c.target.cluster)
}

// keepsIdentity reports whether id is the admitted user and still belongs to all groups.
func keepsIdentity(id, admitted identity.Identity) bool {
	return id.User == admitted.User && id.UID == admitted.UID &&
		!slices.ContainsFunc(admitted.Groups, func(group string) bool { return !slices.Contains(id.Groups, group) })
}

// refused reports whether err is a refusal. Any other error means that the check itself failed.
func refused(err error) bool {
	var e *refusal.Error
	if !errors.As(err, &e) {
		return false
	}
	code := e.Status().Code
	return code == http.StatusUnauthorized || code == http.StatusForbidden
}
