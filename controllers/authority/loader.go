// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package authority

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/internal/trust"
)

// Loader hands, on every replica, the hub's authority and the operator's own certificate from their Secrets to what serves with them.
type Loader struct {
	Client client.Client
	Trust  *trust.Holder
	// Authority is the Secret of the hub's CA. Given is the operator's own, empty if there is none.
	Authority types.NamespacedName
	Given     types.NamespacedName
	Now       func() time.Time
}

// Reconcile loads the Secret that the request names. It makes the first authority: a replica that is not the leader must serve, too.
func (l *Loader) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	secret := &corev1.Secret{}
	if err := l.Client.Get(ctx, req.NamespacedName, secret); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	} else if err != nil {
		if req.NamespacedName == l.Authority {
			return ctrl.Result{}, Ensure(ctx, l.Client, l.Authority, l.Now())
		}
		return ctrl.Result{}, nil // keep serving with what was loaded before
	}
	if req.NamespacedName == l.Given {
		return ctrl.Result{}, l.Trust.LoadGiven(secret)
	}
	return ctrl.Result{}, l.Trust.LoadAuthority(secret)
}
