// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package authority

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/trust"
)

// Loader loads the hub's authority and the operator's own certificate from their Secrets into the trust.Holder. It runs
// on every replica.
type Loader struct {
	Client client.Client
	// Live reads from the API server.
	Live  client.Reader
	Trust *trust.Holder
	// Authority is the Secret with the hub's CA. Given is the Secret with the operator's own certificate. The name of
	// Given is empty if there is no such Secret.
	Authority types.NamespacedName
	Given     types.NamespacedName
	Now       func() time.Time
}

// Reconcile loads the Secret that the request names. It also creates the first authority, because replicas must serve
// clients even if no leader has been elected yet.
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
	identity, err := l.identity(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	if trust.Identify(secret, identity) {
		return ctrl.Result{}, l.update(ctx, secret) // the write triggers another reconcile
	}
	return ctrl.Result{}, l.Trust.LoadAuthority(secret)
}

// loadGiven loads the operator's own certificate. It keeps the previous certificate if the Secret is missing or
// invalid.
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

// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get

// identity returns the hub's identity from memory. If the hub has no identity yet, identity returns the identity that
// agents used before identities were stored in the Secret.
func (l *Loader) identity(ctx context.Context) (string, error) {
	if identity := l.Trust.Identity(); identity != "" {
		return identity, nil
	}
	system := &corev1.Namespace{}
	if err := l.Live.Get(ctx, types.NamespacedName{Name: metav1.NamespaceSystem}, system); err != nil {
		return "", fmt.Errorf("identify the hub: %w", err)
	}
	return trust.Identity(string(system.UID)), nil
}

// update writes the identity to the Secret. Another replica may write the same value at the same time.
func (l *Loader) update(ctx context.Context, secret *corev1.Secret) error {
	if err := l.Client.Update(ctx, secret); err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("write the hub's identity into Secret %s: %w", l.Authority, err)
	}
	return nil
}

// make creates the missing Secret with the hub's authority. If the Secret was deleted, make recreates it from the
// authority in memory, because agents would not trust any other authority. Otherwise, make creates a new authority. If
// several replicas call make at the same time, only one of them succeeds.
func (l *Loader) make(ctx context.Context) error {
	state, held := l.Trust.Authority()
	if !held {
		identity, err := l.identity(ctx)
		if err != nil {
			return err
		}
		first, err := trust.Apply(trust.State{Identity: identity}, trust.StepCreate, l.Now())
		if err != nil {
			return err
		}
		state = first
	}
	secret := &corev1.Secret{}
	secret.Namespace, secret.Name = l.Authority.Namespace, l.Authority.Name
	secret.Labels = map[string]string{v1.LabelSecretKind: v1.SecretKindAuthority, v1.LabelManagedBy: v1.ManagedBy}
	trust.WriteSecret(secret, state)
	if err := l.Client.Create(ctx, secret); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create the hub's CA in Secret %s: %w", l.Authority, err)
	}
	return nil
}
