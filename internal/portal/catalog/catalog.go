// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package catalog shows users their identity on the hub, and the Clusters that they can reach through it.
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

// Paths of the catalog.
const (
	PathWhoAmI   = "/v1/whoami"
	PathClusters = "/v1/clusters"
)

// answerLimit is the time limit for one response, including the time that the request waits for its turn.
const answerLimit = 15 * time.Second

// Catalog serves users. All its exported fields are required.
type Catalog struct {
	// Authenticate identifies the sender of a request. Its errors are refusals.
	Authenticate func(*http.Request) (identity.Identity, error)
	Ways
	// Clusters reads Clusters from a cache.
	Clusters client.Reader

	gate *limit.Gate
}

// Ways holds the ways in which the proxy lets users reach a member.
type Ways struct {
	// Workspaces returns the workspaces in which the principals have bindings. For each workspace, it returns the
	// principals with a binding in that workspace.
	Workspaces func(index.Principals) (map[string]index.Principals, error)
	// Bound is access through a binding, and Proxy is access through the "get" right on clusters/proxy. If the name is
	// empty, Proxy applies to all Clusters in a namespace. If the namespace is empty too, it applies to all Clusters.
	Bound, Proxy identity.Way
}

// New returns a Catalog. It serves one list at a time to each user, and lists to eight users at the same time. Other
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

// serve returns a handler that responds to a user with JSON.
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

// clusters returns a list of Clusters, when it is the user's turn.
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

// whoAmI returns the user with the names that bindings use, as a Kubernetes SelfSubjectReview.
func whoAmI(id identity.Identity) any {
	return authenticationv1.SelfSubjectReview{
		TypeMeta: metav1.TypeMeta{APIVersion: authenticationv1.SchemeGroupVersion.String(), Kind: "SelfSubjectReview"},
		Status: authenticationv1.SelfSubjectReviewStatus{
			UserInfo: authenticationv1.UserInfo{Username: id.User, UID: id.UID, Groups: id.Groups},
		},
	}
}
