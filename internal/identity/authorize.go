// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	authorizationv1client "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"github.com/drover-dev/drover/internal/identity/decision"
	"github.com/drover-dev/drover/internal/identity/refusal"
)

const (
	// allowedFor is how long a granted right is cached. It is the maximum time that a user keeps a right after it has
	// been revoked.
	allowedFor = 10 * time.Second
	// deniedFor is how long a denial is cached. It is the maximum time before a newly granted right takes effect.
	deniedFor = 5 * time.Second
)

// A Way is one way in which a user can be allowed to reach a member. It reports whether the user is allowed. An error
// means that this could not be determined.
type Way func(ctx context.Context, id Identity, cluster types.NamespacedName) (bool, error)

// Chain lists the ways in which users can be allowed to reach a member. One of them is sufficient.
type Chain []Way

// Authorize returns nil if one of the ways allows a user to reach a member. Every error is a refusal: 503 if a way
// could not be checked, and 403 otherwise.
func (c Chain) Authorize(ctx context.Context, id Identity, cluster types.NamespacedName) error {
	var unknown []error
	for _, way := range c {
		open, err := way(ctx, id, cluster)
		switch {
		case err != nil:
			unknown = append(unknown, err)
		case open:
			return nil
		}
	}
	if len(unknown) > 0 {
		return refusal.Unavailable("the hub could not determine what you may do; try again").
			Because(errors.Join(unknown...)).About(cluster)
	}
	return refusal.Forbidden(fmt.Sprintf("user %q may not reach cluster %q through the hub; ask for the right to get "+
		"clusters/proxy of cluster.drover.dev in namespace %q, or for a binding in the cluster",
		id.Hub.Username, cluster, cluster.Namespace)).About(cluster)
}

// Access asks the hub's API server to review users' rights. Use NewAccess to create it. It is safe for concurrent use.
type Access struct {
	reviews authorizationv1client.SubjectAccessReviewInterface
	known   *decision.Cache[bool]
}

// NewAccess returns an Access. It caches a granted right for 10 s and a denied right for 5 s.
func NewAccess(reviews authorizationv1client.SubjectAccessReviewInterface) *Access {
	return &Access{reviews: reviews, known: decision.New[bool]()}
}

// ClusterProxy is the Way for users who have the "get" right on clusters/proxy on the hub.
func (a *Access) ClusterProxy(ctx context.Context, id Identity, cluster types.NamespacedName) (bool, error) {
	key := id.Digest("clusters/proxy", cluster.Namespace, cluster.Name)
	return a.allowed(ctx, id, key, authorizationv1.SubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: "cluster.drover.dev", Version: "v1", Resource: "clusters", Subresource: "proxy",
			Verb: "get", Namespace: cluster.Namespace, Name: cluster.Name,
		},
	})
}

// Watch reports whether a user may watch a Drover resource in a namespace of the hub. An empty namespace means all
// namespaces.
func (a *Access) Watch(ctx context.Context, id Identity, resource, namespace string) (bool, error) {
	return a.allowed(ctx, id, id.Digest("watch", resource, namespace), authorizationv1.SubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: "cluster.drover.dev", Version: "v1", Resource: resource, Verb: "watch", Namespace: namespace,
		},
	})
}

// Lease reports whether a user may get a Lease on the hub.
func (a *Access) Lease(ctx context.Context, id Identity, lease types.NamespacedName) (bool, error) {
	key := id.Digest("leases", lease.Namespace, lease.Name)
	return a.allowed(ctx, id, key, authorizationv1.SubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: "coordination.k8s.io", Version: "v1", Resource: "leases", Verb: "get", Namespace: lease.Namespace,
			Name: lease.Name,
		},
	})
}

// Metrics returns a refusal unless the user may get the path /metrics on the hub. The status of the refusal is 403, or
// 503 if the right could not be checked.
func (a *Access) Metrics(ctx context.Context, id Identity) error {
	path := &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/metrics"}
	allowed, err := a.allowed(ctx, id, id.Digest("nonresource", path.Verb, path.Path),
		authorizationv1.SubjectAccessReviewSpec{NonResourceAttributes: path})
	switch {
	case err != nil:
		return refusal.Unavailable("the hub could not determine what you may do; try again").Because(err)
	case !allowed:
		return refusal.Forbidden(fmt.Sprintf(
			"user %q may not %s %s; ask for a ClusterRole on the hub with this nonResourceURL",
			id.Hub.Username, path.Verb, path.Path))
	}
	return nil
}

func (a *Access) allowed(
	ctx context.Context, id Identity, key decision.Key, spec authorizationv1.SubjectAccessReviewSpec,
) (bool, error) {
	if !id.Valid() {
		return false, nil
	}
	return a.known.Get(ctx, key, id.Sharer(), func(ctx context.Context) (decision.Result[bool], error) {
		spec.User, spec.UID, spec.Groups = id.Hub.Username, id.Hub.UID, id.Hub.Groups
		spec.Extra = make(map[string]authorizationv1.ExtraValue, len(id.Hub.Extra))
		for key, values := range id.Hub.Extra {
			spec.Extra[key] = authorizationv1.ExtraValue(values)
		}
		review, err := a.reviews.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			return decision.Result[bool]{}, fmt.Errorf("review access: %w", err)
		}
		if review.Status.Allowed && !review.Status.Denied {
			return decision.Result[bool]{Value: true, For: allowedFor, Yes: true}, nil
		}
		return decision.Result[bool]{Value: false, For: deniedFor}, nil
	})
}

// Protect returns a handler that calls next for users whom authenticate identifies and authorize admits. It refuses all
// others with a Status.
func Protect(
	next http.Handler, authenticate func(*http.Request) (Identity, error), authorize func(context.Context, Identity) error,
) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, err := authenticate(r)
		if err == nil {
			err = authorize(r.Context(), id)
		}
		if err != nil {
			refusal.Write(w, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}
