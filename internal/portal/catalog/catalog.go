// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package catalog shows users their identity on the hub and the Clusters that they can reach through the hub.
package catalog

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/limit"
)

// Paths of the catalog's endpoints.
const (
	PathWhoAmI   = "/v1/whoami"
	PathClusters = "/v1/clusters"
)

// answerLimit is the deadline for a response. It includes the time that the request waits in a queue.
const answerLimit = 15 * time.Second

// Catalog serves the catalog to users. All exported fields are required.
type Catalog struct {
	// Authenticate returns the user who sent a request. Its errors are refusals.
	Authenticate func(*http.Request) (identity.Identity, error)
	Ways
	// Clusters reads Clusters from a cache.
	Clusters client.Reader

	gate *limit.Gate
}

// Ways contains the functions that determine which members a user can reach through the proxy.
type Ways struct {
	// Workspaces returns the workspaces in which any of the principals has a binding, each with the principals that
	// have a binding there.
	Workspaces func(index.Principals) (map[string]index.Principals, error)
	// Bound reports whether a binding lets the user reach a Cluster. Proxy reports whether the "get" right on
	// clusters/proxy lets the user reach a Cluster. With an empty name, Proxy reviews the right for all Clusters in a
	// namespace. If the namespace is empty too, it reviews the right for all Clusters.
	Bound, Proxy identity.Way
}

// New returns a Catalog. Each user gets one list at a time, and at most eight lists are created at the same time. Other
// requests wait.
func New(c Catalog) *Catalog {
	c.gate = limit.NewGate(limit.Bounds{User: 1, All: 8, Queue: 256, QueueUser: 4, Wait: answerLimit}, limit.Observer{})
	return &c
}

// Register adds the catalog's endpoints to a mux.
func (c *Catalog) Register(mux *http.ServeMux) {
	mux.Handle("GET "+PathWhoAmI,
		c.serve(func(_ context.Context, id identity.Identity, _ *http.Request) (any, error) { return whoAmI(id), nil }))
	mux.Handle("GET "+PathClusters, c.serve(c.clusters))
}

// serve returns a handler that sends the response to a user's request as JSON.
func (c *Catalog) serve(answer func(context.Context, identity.Identity, *http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, err := c.answer(r, answer)
		if err != nil {
			audit.From(r.Context()).Refused(string(refusal.Of(err).Status().Reason))
			refusal.Write(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_ = json.NewEncoder(w).Encode(content)
	})
}

func (c *Catalog) answer(
	r *http.Request, answer func(context.Context, identity.Identity, *http.Request) (any, error),
) (any, error) {
	id, err := c.Authenticate(r)
	if err != nil {
		return nil, err
	}
	if !id.Valid() {
		return nil, refusal.Unauthorized("the request has no user")
	}
	audit.From(r.Context()).Identified(audit.User{Name: id.Hub.Username, UID: id.UID, Groups: id.Hub.Groups}, nil)
	return answer(r.Context(), id, r)
}

// clusters waits until a list may be created for the user, and returns the list.
func (c *Catalog) clusters(ctx context.Context, id identity.Identity, r *http.Request) (any, error) {
	q, err := queryOf(r)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	seat, err := c.gate.Enter(ctx, limit.Requester{User: id.Sharer()})
	if err != nil {
		return nil, refusal.TooManyRequests("too many concurrent requests for lists; try again", 2*time.Second).Because(err)
	}
	defer seat.Release()
	return c.list(ctx, id, q)
}

// whoAmI returns a Kubernetes SelfSubjectReview. It contains the names that bindings use for the user and the user's
// groups.
func whoAmI(id identity.Identity) any {
	return authenticationv1.SelfSubjectReview{
		TypeMeta: metav1.TypeMeta{APIVersion: authenticationv1.SchemeGroupVersion.String(), Kind: "SelfSubjectReview"},
		Status: authenticationv1.SelfSubjectReviewStatus{
			UserInfo: authenticationv1.UserInfo{Username: id.User, UID: id.UID, Groups: id.Groups},
		},
	}
}
