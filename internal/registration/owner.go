// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"crypto/subtle"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/protocol"
)

// +kubebuilder:rbac:groups=cluster.drover.dev,resources=hosts,verbs=get;list;watch

// ownerOf returns the name of the Cluster or Host with the given member name, and an empty object of its kind.
func ownerOf(member types.NamespacedName) (types.NamespacedName, client.Object) {
	if host, ok := protocol.HostOf(member.Name); ok {
		return types.NamespacedName{Namespace: member.Namespace, Name: host}, &v1.Host{}
	}
	return member, &v1.Cluster{}
}

func memberName(owner client.Object) types.NamespacedName {
	name := client.ObjectKeyFromObject(owner)
	if _, isHost := owner.(*v1.Host); isHost {
		name.Name = protocol.HostMember(name.Name)
	}
	return name
}

func kindOf(owner client.Object) string {
	if _, isHost := owner.(*v1.Host); isHost {
		return "Host"
	}
	return "Cluster"
}

// tokenTTL returns how long a join token of a Cluster or Host can be used.
func tokenTTL(owner client.Object) time.Duration {
	switch owner := owner.(type) {
	case *v1.Cluster:
		return owner.Spec.Registration.TokenTTL.Duration
	case *v1.Host:
		return owner.Spec.TokenTTL.Duration
	}
	return 0
}

// SecretOf reads the registration Secret of a Cluster or Host. It returns nil if there is none. foreign reports
// whether its name is taken by another Secret.
func SecretOf(
	ctx context.Context, reader client.Reader, owner client.Object,
) (secret *corev1.Secret, foreign bool, err error) {
	member := memberName(owner)
	secret, err = owned.ReadSecret(ctx, reader, RegistrationSecret(member))
	if err != nil || secret == nil {
		return nil, false, err
	}
	if !Ours(secret, member.Name, v1.SecretKindRegistration) {
		return nil, true, nil
	}
	return secret, false, nil
}

// TokenOf returns the join token in the registration Secret of a Cluster or Host. It returns the zero Token if there is
// no Secret. The result is also zero if the Secret has no owner reference, because no agent can join with the Secret's
// token. An owner reference can be missing after a restore.
func TokenOf(secret *corev1.Secret, owner client.Object) Token {
	if secret == nil || !Owned(secret, owner) {
		return Token{}
	}
	return ReadToken(secret, tokenTTL(owner))
}

// AgentOf reads the identity of the agent of a Cluster or Host. It returns nil if there is none. A Secret identifies
// no agent if it cannot be decoded, was not created by Drover, or belongs to an earlier Cluster or Host with the same
// name.
func AgentOf(ctx context.Context, reader client.Reader, owner client.Object) (*AgentIdentity, error) {
	member := memberName(owner)
	secret, err := owned.ReadSecret(ctx, reader, AgentSecret(member))
	if err != nil || secret == nil {
		return nil, err
	}
	if id := identityIn(secret, member.Name); id != nil && id.OwnerUID == owner.GetUID() {
		return id, nil
	}
	return nil, nil
}

// identityIn returns the identity in the agent Secret of a member. It returns nil if the Secret cannot be decoded or
// was not created by Drover.
func identityIn(secret *corev1.Secret, member string) *AgentIdentity {
	if !Ours(secret, member, v1.SecretKindAgent) {
		return nil
	}
	id, err := ReadIdentity(secret)
	if err != nil {
		return nil
	}
	return id
}

// called returns a member's name for use in messages. The argument is the member name, "namespace/name".
func called(member string) string {
	namespace, name, _ := strings.Cut(member, "/")
	if host, ok := protocol.HostOf(name); ok {
		return "host " + namespace + "/" + host
	}
	return "cluster " + member
}

// registered holds a Cluster or Host and its join token.
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
	return secret, identityIn(secret, name.Name), nil
}
