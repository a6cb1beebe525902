// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/proxy"
	"github.com/drover-dev/drover/internal/signin"
)

// users identifies users and admits them to members.
type users struct {
	authenticate func(*http.Request) (identity.Identity, error)
	authorize    func(context.Context, identity.Identity, types.NamespacedName) error
	audiences    identity.Audiences
}

// signIn adds the hub's sign-in service. It returns the issuer of the users' tokens, or nil if sign-in is not
// configured.
func (u *users) signIn(ctx context.Context, mgr ctrl.Manager, cfg config.Config, grants *index.Grants,
	log logr.Logger) (*signin.Server, error) {
	var issuer *signin.Server
	if !cfg.SignIn.On() {
		return issuer, nil
	}
	if err := index.Users(ctx, mgr.GetFieldIndexer()); err != nil {
		return nil, err
	}
	issuer = signin.New(signin.Options{
		Issuer: cfg.SignIn.Issuer, Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Namespace: cfg.Namespace, Now: time.Now,
		Log: log,
		Disabled: func(ctx context.Context, principal string) (bool, error) {
			return index.Disabled(ctx, mgr.GetClient(), principal)
		},
		Named:    grants.Named,
		Sessions: signin.Bounds{Idle: cfg.SignIn.SessionIdleTimeout.Duration, Lifetime: cfg.SignIn.SessionLifetime.Duration},
		MaxTTL:   cfg.SignIn.Tokens.MaxTTL.Duration, Audiences: u.audiences,
		Direct: signin.Direct{Path: proxy.PathClusters, Lifetime: directLifetime(mgr.GetClient(), u.authorize)},
	})
	u.authenticate, u.authorize = issuer.Authenticate(u.authenticate), issuer.Authorize(u.authorize)
	return issuer, nil
}

// directLifetime returns how long a user's token for direct access to a cluster is valid. It is 0 for a cluster without
// direct access, and for a user whom the proxy would refuse.
func directLifetime(clusters client.Reader, authorize func(context.Context, identity.Identity,
	types.NamespacedName) error) func(context.Context, identity.Identity, types.NamespacedName) (time.Duration, error) {
	return func(ctx context.Context, id identity.Identity, name types.NamespacedName) (time.Duration, error) {
		cluster := &v1.Cluster{}
		if err := clusters.Get(ctx, name, cluster); err != nil {
			return 0, client.IgnoreNotFound(err)
		}
		endpoint := cluster.Spec.AuthorizedEndpoint
		if !endpoint.On() || !cluster.DeletionTimestamp.IsZero() {
			return 0, nil
		}
		if err := authorize(ctx, id, name); err != nil {
			if refusal.Of(err).Status().Code < http.StatusInternalServerError {
				return 0, nil
			}
			return 0, err
		}
		return endpoint.OfflineTime(), nil
	}
}
