// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package authority

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/pki"
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
	err := l.Client.Get(ctx, req.NamespacedName, secret)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return ctrl.Result{}, fmt.Errorf("read Secret %s: %w", req.NamespacedName, err)
	case req.NamespacedName == l.Given:
		return ctrl.Result{}, l.loadGiven(secret, err == nil)
	case err != nil:
		return ctrl.Result{}, l.make(ctx)
	}
	return ctrl.Result{}, l.Trust.LoadAuthority(secret)
}

// loadGiven keeps the certificate that was loaded before if the Secret is gone or invalid.
func (l *Loader) loadGiven(secret *corev1.Secret, exists bool) error {
	if !exists {
		l.Trust.GivenAbsent()
		return nil
	}
	if err := l.Trust.LoadGiven(secret); err != nil {
		l.Trust.GivenAbsent()
		return err
	}
	return nil
}

// make writes the hub's authority into a Secret that is not there: the one that is in memory, if the Secret was deleted, since
// another would strand every agent; else the first. If several replicas try, one wins.
func (l *Loader) make(ctx context.Context) error {
	state, held := l.Trust.Authority()
	if !held {
		first, err := pki.Apply(pki.State{}, pki.StepCreate, l.Now())
		if err != nil {
			return err
		}
		state = first
	}
	secret := &corev1.Secret{}
	secret.Namespace, secret.Name = l.Authority.Namespace, l.Authority.Name
	secret.Labels = map[string]string{v1.LabelSecretKind: v1.SecretKindAuthority, "app.kubernetes.io/managed-by": "drover"}
	pki.WriteSecret(secret, state)
	if err := l.Client.Create(ctx, secret); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create the hub's CA in Secret %s: %w", l.Authority, err)
	}
	return nil
}
