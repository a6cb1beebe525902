// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/signin"
	issuer "github.com/drover-dev/drover/internal/signin"
	"github.com/drover-dev/drover/internal/signin/upstream"
	"github.com/drover-dev/drover/internal/wiring"
)

// signIn lists the controllers for the sign-in objects. The list is empty if sign-in is not configured.
func signIn(s shared) []wiring.Controller {
	if !s.Config.SignIn.On() {
		return nil
	}
	secret, namespace := s.own(issuer.KeysSecret), s.Config.Namespace
	users := &signin.Users{Client: s.client, Recorder: s.recorder("drover-user"), Namespace: namespace}
	connectors := &upstream.Connectors{Reader: s.client, Namespace: namespace}
	providers := &signin.Providers{
		Client: s.client, Recorder: s.recorder("drover-authprovider"), Connectors: connectors, Now: time.Now,
	}
	sessions := &signin.Sessions{Client: s.client, Namespace: namespace, Now: time.Now}
	return []wiring.Controller{
		{
			Name: "sign-in-keys", Reconciler: &signin.Keys{Client: s.client, Secret: secret, Now: time.Now},
			Triggers: []wiring.Trigger{
				wiring.OnChange(&corev1.Secret{}, wiring.Named(secret)), wiring.RequestOnStart(secret),
			},
		},
		{
			Name: "sign-in-sessions", Reconciler: sessions,
			Triggers: []wiring.Trigger{wiring.OnChange(&corev1.Secret{}, predicate.NewPredicateFuncs(sessions.Ends))},
		},
		{
			Name: "authprovider", Reconciler: providers, Workers: 4,
			Triggers: []wiring.Trigger{
				wiring.OnChange(&v1.AuthProvider{}, predicate.GenerationChangedPredicate{}),
				wiring.OnOtherChange(&corev1.Secret{}, providers.Handler()),
			},
		},
		{
			Name: "user", Reconciler: users,
			Triggers: []wiring.Trigger{wiring.OnChange(&v1.User{}), wiring.OnOtherChange(&corev1.Secret{}, users.Handler())},
		},
	}
}
