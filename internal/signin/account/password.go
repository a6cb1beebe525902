// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package account

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/internal/signin/password"
)

// Password returns a User and the hash of the User's password. If the User or the password does not exist, it returns a
// hash that no password matches, so that checking a password always takes the same amount of time.
func (a *Accounts) Password(ctx context.Context, name string) (*v1.User, string, error) {
	if len(validation.IsDNS1123Label(name)) > 0 {
		return nil, password.Nothing(), nil
	}
	user, secret := &v1.User{}, &corev1.Secret{}
	for key, object := range map[types.NamespacedName]client.Object{{Name: name}: user, a.secret(name): secret} {
		if err := a.Cache.Get(ctx, key, object); apierrors.IsNotFound(err) {
			return nil, password.Nothing(), nil
		} else if err != nil {
			return nil, "", fmt.Errorf("read a user: %w", err)
		}
	}
	if user.Spec.Principal != "" || !HoldsPassword(secret, user) {
		return nil, password.Nothing(), nil
	}
	return user, string(secret.Data[v1.UserSecretKey]), nil
}

// SamePassword returns ErrNotStanding if the digest of the User's password hash has changed. Therefore, setting a new
// password ends all sessions that started with the previous password.
func (a *Accounts) SamePassword(ctx context.Context, from client.Reader, name, digest string) error {
	secret := &corev1.Secret{}
	if err := from.Get(ctx, a.secret(name), secret); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read a user: %w", err)
	}
	if hash := string(secret.Data[v1.UserSecretKey]); hash == "" || digest != oauth.Digest(hash) {
		return ErrNotStanding
	}
	return nil
}

// secret returns the name of the Secret with a User's password.
func (a *Accounts) secret(user string) types.NamespacedName {
	return types.NamespacedName{Namespace: a.Namespace, Name: v1.UserSecretPrefix + user}
}

// HoldsPassword reports whether a Secret holds the password of this User, rather than of an earlier User with the same
// name.
func HoldsPassword(secret *corev1.Secret, user *v1.User) bool {
	return secret.Labels[v1.LabelSecretKind] == v1.SecretKindUser && user.UID != "" &&
		string(secret.Data[v1.UserSecretUID]) == string(user.UID)
}
