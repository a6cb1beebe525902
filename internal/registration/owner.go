// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
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
	if err != nil || secret == nil || !Ours(secret, member.Name, v1.SecretKindAgent) {
		return nil, err
	}
	id, err := ReadIdentity(secret)
	if err != nil || id.OwnerUID != owner.GetUID() {
		return nil, nil
	}
	return id, nil
}

// called returns a member's name for use in messages. The argument is the member name, "namespace/name".
func called(member string) string {
	namespace, name, _ := strings.Cut(member, "/")
	if host, ok := protocol.HostOf(name); ok {
		return "host " + namespace + "/" + host
	}
	return "cluster " + member
}
