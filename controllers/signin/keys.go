// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package signin reconciles the sign-in objects: the keys that sign tokens, AuthProviders, Users and sessions.
package signin

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/signin"
	"github.com/drover-dev/drover/internal/signin/keys"
)

// Keys creates and rotates the keys that sign tokens. It runs on the leader.
type Keys struct {
	Client client.Client
	// Secret is the name of the Secret that contains the keys.
	Secret types.NamespacedName
	Now    func() time.Time
}

// Reconcile performs the next step of the key rotation if one is due.
func (k *Keys) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	secret := &corev1.Secret{}
	if err := k.Client.Get(ctx, k.Secret, secret); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("read the keys that sign tokens: %w", err)
	}
	set, err := keys.Decode(secret.Data[signin.KeyOfKeys])
	if err != nil { // new keys would invalidate all tokens, so an administrator has to decide
		return ctrl.Result{}, fmt.Errorf("read Secret %s: %w; delete it to have new keys made, which ends all tokens", k.Secret, err)
	}
	now := k.Now()
	step := keys.Next(set, now)
	if !step.Add && step.Remove == 0 {
		return ctrl.Result{RequeueAfter: max(step.Again.Sub(now), time.Second)}, nil
	}
	set = set[step.Remove:]
	if step.Add {
		key, err := keys.New(now)
		if err != nil {
			return ctrl.Result{}, err
		}
		set = append(set, key)
	}
	return ctrl.Result{}, k.write(ctx, secret, set) // the write triggers another reconcile
}

func (k *Keys) write(ctx context.Context, secret *corev1.Secret, set keys.Set) error {
	raw, err := keys.Encode(set)
	if err != nil {
		return err
	}
	secret.Namespace, secret.Name, secret.Type = k.Secret.Namespace, k.Secret.Name, corev1.SecretTypeOpaque
	secret.Labels = map[string]string{v1.LabelSecretKind: v1.SecretKindSignIn, v1.LabelManagedBy: v1.ManagedBy}
	secret.Data = map[string][]byte{signin.KeyOfKeys: raw}
	write := k.Client.Update
	if secret.ResourceVersion == "" {
		write = func(ctx context.Context, o client.Object, _ ...client.UpdateOption) error {
			return k.Client.Create(ctx, o)
		}
	}
	if err := write(ctx, secret); err != nil {
		return fmt.Errorf("write the keys that sign tokens into Secret %s: %w", k.Secret, err)
	}
	return nil
}
