// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// +kubebuilder:rbac:groups=cluster.drover.dev,resources=hosts,verbs=get;list;watch

// ownerOf returns the name and an empty object of the Cluster or Host with the given member name.
func ownerOf(member types.NamespacedName) (types.NamespacedName, client.Object) {
	if host, ok := protocol.HostOf(member.Name); ok {
		return types.NamespacedName{Namespace: member.Namespace, Name: host}, &v1.Host{}
	}
	return member, &v1.Cluster{}
}

// memberName returns the member name of a Cluster or Host.
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

// called returns the name of a member for use in messages. The argument is its member name, "namespace/name".
func called(member string) string {
	namespace, name, _ := strings.Cut(member, "/")
	if host, ok := protocol.HostOf(name); ok {
		return "host " + namespace + "/" + host
	}
	return "cluster " + member
}
