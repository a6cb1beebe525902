// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/decision"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/protocol"
)

const (
	// maxImpersonated is the maximum number of impersonation headers in one request. The number is limited because each
	// header causes a request to the member.
	maxImpersonated = 32
	// reviewTTL is how long a member's access review is cached. It is therefore the maximum delay before a change to a
	// user's impersonation rights takes effect.
	reviewTTL = 5 * time.Second
	// reviewTimeout limits the time for all access reviews of one request.
	reviewTimeout = 8 * time.Second
)

// impersonation describes the user whom the sender of a request impersonates in the member.
type impersonation struct {
	user   string
	uid    string
	groups []string
	extra  map[string][]string
	// account is the ServiceAccount of the member if user is a ServiceAccount's name, and nil otherwise. The agent
	// adds the groups of the account.
	account *protocol.ServiceAccount
}

// parseImpersonation returns the user whom the caller wants to impersonate (kubectl --as), or nil if there is none. It
// follows the rules of the API server. In addition, it refuses the member's own system users and groups, except
// ServiceAccounts.
func parseImpersonation(h http.Header) (*impersonation, error) {
	wanted := impersonation{extra: map[string][]string{}}
	count := 0
	for name, values := range h {
		if !hasFoldedPrefix(name, "Impersonate-") || strings.Join(values, "") == "" {
			continue // as in an API server, empty headers are ignored
		}
		count += len(values)
		if err := wanted.add(http.CanonicalHeaderKey(name), values); err != nil {
			return nil, err
		}
	}
	switch {
	case count == 0:
		return nil, nil // no impersonation, and no error
	case count > maxImpersonated:
		return nil, refusal.BadRequest(fmt.Sprintf("the request has %d impersonation headers; at most %d are allowed",
			count, maxImpersonated))
	case wanted.user == "":
		return nil, refusal.BadRequest("the request impersonates groups, a uid or extras, but no user; add --as")
	}
	return &wanted, wanted.checkTarget()
}

func (i *impersonation) add(name string, values []string) error {
	if bad := slices.IndexFunc(values, func(v string) bool { return v == "" || !identity.HeaderSafe(v) }); bad >= 0 {
		return refusal.BadRequest(fmt.Sprintf(
			"a value of the %s header is empty or has characters that a name must not have", name))
	}
	key, isExtra := strings.CutPrefix(name, authenticationv1.ImpersonateUserExtraHeaderPrefix)
	switch {
	case name == authenticationv1.ImpersonateGroupHeader:
		i.groups = append(i.groups, values...)
	case isExtra:
		key = strings.ToLower(key)
		if decoded, err := url.PathUnescape(key); err == nil {
			key = decoded
		}
		i.extra[key] = append(i.extra[key], values...)
	case len(values) > 1:
		return refusal.BadRequest(fmt.Sprintf("the %s header is given %d times; give it once", name, len(values)))
	case name == authenticationv1.ImpersonateUserHeader:
		i.user = values[0]
	case name == authenticationv1.ImpersonateUIDHeader:
		i.uid = values[0]
	default:
		return refusal.BadRequest(fmt.Sprintf("API servers do not know the header %s", name))
	}
	return nil
}

// checkTarget refuses users and groups that must not be impersonated through the hub. The agent refuses them too.
func (i *impersonation) checkTarget() error {
	if account, is := protocol.ParseServiceAccount(i.user); is {
		i.account = &account
		return i.checkAccount()
	}
	if strings.HasPrefix(i.user, "system:") {
		return refusal.Forbidden(fmt.Sprintf(
			"%q may not be impersonated through the hub: it is a system user of the cluster; "+
				"use a kubeconfig of the cluster for that", i.user))
	}
	for _, group := range i.groups {
		if strings.HasPrefix(group, "system:") && group != "system:authenticated" {
			return refusal.Forbidden(fmt.Sprintf("the group %q may not be impersonated through the hub: "+
				"it is a system group of the cluster; use a kubeconfig of the cluster for that", group))
		}
	}
	if _, claimed := i.extra[impersonatorKey]; claimed {
		return refusal.Forbidden(fmt.Sprintf("the extra %q may not be impersonated: the hub sets it", impersonatorKey))
	}
	return nil
}

// checkAccount refuses Drover's own ServiceAccounts, and any groups, uid or extras that Kubernetes would not give to
// the account.
func (i *impersonation) checkAccount() error {
	switch {
	case i.account.Reserved():
		return refusal.Forbidden(fmt.Sprintf(
			"%q may not be impersonated through the hub: it is an account of Drover", i.user))
	case len(i.groups) > 0 || i.uid != "" || len(i.extra) > 0:
		return refusal.Forbidden(fmt.Sprintf(
			"%q may be impersonated through the hub only with the groups that Kubernetes gives it; "+
				"leave out --as-group, --as-uid and extras", i.user))
	}
	return nil
}

// rights lists the rights that the caller needs in the member for this impersonation. As in an API server, each user,
// group, uid and extra is a separate right.
func (i *impersonation) rights() []authorizationv1.ResourceAttributes {
	list := []authorizationv1.ResourceAttributes{{Resource: "users", Name: i.user}}
	if i.account != nil {
		list[0] = authorizationv1.ResourceAttributes{
			Resource: "serviceaccounts", Namespace: i.account.Namespace, Name: i.account.Name,
		}
	}
	for _, group := range i.groups {
		list = append(list, authorizationv1.ResourceAttributes{Resource: "groups", Name: group})
	}
	if i.uid != "" {
		list = append(list, authorizationv1.ResourceAttributes{
			Group: authenticationv1.GroupName, Version: "v1", Resource: "uids", Name: i.uid,
		})
	}
	for _, key := range slices.Sorted(maps.Keys(i.extra)) {
		for _, value := range i.extra[key] {
			list = append(list, authorizationv1.ResourceAttributes{
				Group: authenticationv1.GroupName, Version: "v1", Resource: "userextras", Subresource: key, Name: value,
			})
		}
	}
	for n := range list {
		list[n].Verb = "impersonate"
	}
	return list
}

// mayImpersonate asks the member, on behalf of the caller, whether the caller has all rights that the requested
// impersonation requires.
func (h *Handler) mayImpersonate(ctx context.Context, c *call, wanted *impersonation) error {
	rights := wanted.rights()
	key, err := json.Marshal(rights)
	if err != nil {
		return fmt.Errorf("list rights to impersonate: %w", err)
	}
	cluster := c.target.cluster.String()
	review := func(ctx context.Context) (decision.Result[bool], error) {
		ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
		defer cancel()
		for _, right := range rights {
			allowed, err := c.reviewAccess(ctx, impersonate(c.identity), right)
			if err != nil || !allowed {
				return decision.Result[bool]{For: reviewTTL}, err
			}
		}
		return decision.Result[bool]{Value: true, For: reviewTTL, Yes: true}, nil
	}
	allowed, err := h.impersonations.Get(ctx, c.identity.Digest(cluster, string(key)), cluster, review)
	switch {
	case err != nil:
		return memberError(c, fmt.Errorf("review the right to impersonate: %w", err))
	case !allowed:
		return refusal.Forbidden(fmt.Sprintf(
			"user %q may not impersonate %q with all requested groups, uid and extras in cluster %q; "+
				"ask in the cluster for the right to impersonate each of them",
			c.identity.User, wanted.user, c.target.cluster)).About(c.target.cluster)
	}
	return nil
}

// reviewAccess asks the member whether the user named in a header has a right.
func (c *call) reviewAccess(
	ctx context.Context, as http.Header, right authorizationv1.ResourceAttributes,
) (bool, error) {
	const url = memberURL + protocol.PathKubernetes + protocol.PathAccessReview
	return protocol.ReviewAccess(ctx, c.transport, url, as, right)
}

func (t target) member() string {
	if t.local {
		return "local"
	}
	return t.cluster.String()
}

// audited records the sender of a request and the user whom the sender wants to impersonate, whether or not this is
// permitted.
func audited(r *http.Request, id identity.Identity) {
	record := audit.From(r.Context())
	if record == nil {
		return
	}
	user := audit.User{
		Name: id.Hub.Username, UID: id.UID, Groups: id.Hub.Groups,
		Extra: make(map[string][]string, len(id.Hub.Extra)),
	}
	for key, values := range id.Hub.Extra {
		user.Extra[key] = values
	}
	// Malformed headers are refused elsewhere. Forbidden impersonations are recorded as well.
	if wanted, _ := parseImpersonation(r.Header); wanted != nil {
		record.Identified(user, &audit.User{Name: wanted.user, UID: wanted.uid, Groups: wanted.groups, Extra: wanted.extra})
		return
	}
	record.Identified(user, nil)
}
