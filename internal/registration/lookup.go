// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"crypto/subtle"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/protocol"
)

// registered is a Cluster or a Host together with its join token.
type registered struct {
	name   types.NamespacedName // the member name
	owner  client.Object
	secret *corev1.Secret
	token  Token
}

// find uses the given reader to read the Cluster that a token belongs to. It returns errUnknownToken if there is none.
// The name of the Cluster always comes from the cache's index.
func (s *Server) find(ctx context.Context, reader client.Reader, token string) (*registered, error) {
	if !ValidToken(token) {
		return nil, errUnknownToken
	}
	var secrets corev1.SecretList
	if err := s.Cache.List(ctx, &secrets, client.MatchingFields{TokenHashIndex: HashToken(token)}); err != nil {
		return nil, fmt.Errorf("look up join token: %w", err)
	}
	if len(secrets.Items) != 1 { // a token that two Clusters share identifies neither of them
		return nil, errUnknownToken
	}
	indexed := &secrets.Items[0]
	name := types.NamespacedName{Namespace: indexed.Namespace, Name: indexed.Labels[v1.LabelCluster]}
	if indexed.Labels[v1.LabelSecretKind] == v1.SecretKindHostJoin {
		name.Name = protocol.HostMember(indexed.Labels[v1.LabelHost])
	}
	secret := &corev1.Secret{}
	key, owner := ownerOf(name)
	for key, object := range map[types.NamespacedName]client.Object{RegistrationSecret(name): secret, key: owner} {
		if err := reader.Get(ctx, key, object); apierrors.IsNotFound(err) {
			return nil, errUnknownToken
		} else if err != nil {
			return nil, fmt.Errorf("look up join token: %w", err)
		}
	}
	if !owned.By(secret, owner.GetUID()) || subtle.ConstantTimeCompare(secret.Data[KeyToken], []byte(token)) != 1 {
		return nil, errUnknownToken
	}
	if !owner.GetDeletionTimestamp().IsZero() {
		return nil, refuse(v1.ReasonRemoving, "%s is being deleted", called(name.String()))
	}
	return &registered{name: name, owner: owner, secret: secret, token: ReadToken(secret, tokenTTL(owner))}, nil
}

// identity returns a Cluster's agent Secret and the identity in it. If there is no Secret, it returns an empty Secret
// and a nil identity. A Secret that cannot be parsed identifies no agent, and the next join replaces it.
func (s *Server) identity(ctx context.Context, reader client.Reader, name types.NamespacedName) (*corev1.Secret,
	*AgentIdentity, error) {
	secret := &corev1.Secret{}
	switch err := reader.Get(ctx, AgentSecret(name), secret); {
	case apierrors.IsNotFound(err):
		return &corev1.Secret{}, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("look up agent of cluster %s: %w", name, err)
	}
	id, err := ReadIdentity(secret)
	if err != nil || !Ours(secret, name.Name, v1.SecretKindAgent) {
		return secret, nil, nil
	}
	return secret, id, nil
}
