// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package catalog tells users who they are for the hub, and which Clusters they may reach through it.
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

// answerLimit bounds one answer, and the wait until its turn.
const answerLimit = 15 * time.Second

// Catalog answers users. Its fields are all needed, but for gate.
type Catalog struct {
	// Authenticate identifies who sends a request. Errors are refusals.
	Authenticate func(*http.Request) (identity.Identity, error)
	// Workspaces returns the workspaces in which the principals have bindings, and which of them have one there.
	Workspaces func(index.Principals) (map[string]index.Principals, error)
	// Bound and Proxy are the ways into a member that the proxy knows: by a binding, and by the right to get
	// clusters/proxy. Without a name, Proxy is about all Clusters of a namespace, and without a namespace about all.
	Bound, Proxy identity.Way
	// Clusters are read from a cache.
	Clusters client.Reader

	gate *limit.Gate
}

// New makes a Catalog. A user gets one list at a time, and eight users at once: the others wait.
func New(c Catalog) *Catalog {
	c.gate = limit.NewGate(limit.Bounds{User: 1, All: 8, Queue: 256, QueueUser: 4, Wait: answerLimit}, limit.Observer{})
	return &c
}

// Register adds the catalog's paths to a mux.
func (c *Catalog) Register(mux *http.ServeMux) {
	mux.Handle("GET "+PathWhoAmI, c.serve(func(_ context.Context, id identity.Identity, _ *http.Request) (any, error) { return whoAmI(id), nil }))
	mux.Handle("GET "+PathClusters, c.serve(c.clusters))
}

// serve answers a user with JSON.
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

func (c *Catalog) answer(r *http.Request, answer func(context.Context, identity.Identity, *http.Request) (any, error)) (any, error) {
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

// clusters answers with a list, in the user's turn.
func (c *Catalog) clusters(ctx context.Context, id identity.Identity, r *http.Request) (any, error) {
	q, err := queryOf(r)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	seat, err := c.gate.Enter(ctx, limit.Requester{User: id.Sharer()})
	if err != nil {
		return nil, refusal.TooManyRequests("too many lists are asked for at once; try again", 2*time.Second).Because(err)
	}
	defer seat.Release()
	return c.list(ctx, id, q)
}

// whoAmI is the user by the names that bindings have, in the form of Kubernetes' SelfSubjectReview.
func whoAmI(id identity.Identity) any {
	return authenticationv1.SelfSubjectReview{
		TypeMeta: metav1.TypeMeta{APIVersion: authenticationv1.SchemeGroupVersion.String(), Kind: "SelfSubjectReview"},
		Status:   authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: id.User, UID: id.UID, Groups: id.Groups}},
	}
}
