// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
)

// restoredObjects are the objects of a hub that say who its agents are, without their content.
type restoredObjects struct {
	members map[types.NamespacedName]*metav1.PartialObjectMetadata // Clusters and Hosts, by their names among members
	secrets []metav1.PartialObjectMetadata
	changed map[types.NamespacedName]time.Time // when each of the Secrets was changed last
	renewed time.Time                          // when the manager's Lease was last renewed, zero without a Lease
}

// revocation is a restored object that the audit log shows to have been deleted, or replaced, later than the hub knows.
type revocation struct {
	member  types.NamespacedName // the name among members of the Cluster or Host that it is or belongs to
	object  *metav1.PartialObjectMetadata
	request auditRequest
}

// revocations returns the Secrets with the identity or the join token of agents that were revoked since the backup, and
// the Clusters and Hosts that were deleted since. It is pure. With the error for Secrets of which it cannot be told, it
// returns the others.
//
// A request is one that the hub has forgotten if it came later than what the hub has: its etcd brought the times of its
// objects back. Since is the time of the backup, where objects were made anew by the restore, zero if they were not.
func (l *auditLog) revocations(hub restoredObjects, since time.Time) (secrets, members []revocation, err error) {
	var foreign []string
	hub.changed = map[types.NamespacedName]time.Time{}
	for i := range hub.secrets {
		hub.changed[client.ObjectKeyFromObject(&hub.secrets[i])] = lastChange(&hub.secrets[i])
	}
	for i := range hub.secrets {
		secret := &hub.secrets[i]
		member := memberOf(secret)
		owner := hub.members[member]
		if owner == nil || !named(secret, member) { // no agent can join or connect by it
			continue
		}
		if since.IsZero() && !ownedBy(secret, owner) {
			foreign = append(foreign, secret.Namespace+"/"+secret.Name)
		}
		if request, revoked := l.revoked(hub, member, secret, since); revoked {
			secrets = append(secrets, revocation{member, secret, request})
		}
	}
	if n := len(foreign); n > 0 {
		slices.Sort(foreign)
		err = fmt.Errorf("%d Secrets are of other objects than the Clusters or Hosts of their names, as %s: where objects were restored without their UIDs, their times say nothing; "+
			"give the time of the backup with --since. If the others have theirs, someone made these: delete them", n, strings.Join(foreign[:min(n, 5)], ", "))
	}
	for member, owner := range hub.members {
		if request := l.deletion(memberResource(member), owner); owner.DeletionTimestamp.IsZero() && request.done.After(latestKnown(owner.CreationTimestamp.Time, since)) {
			members = append(members, revocation{member, owner, request})
		}
	}
	slices.SortFunc(secrets, byName)
	slices.SortFunc(members, byName)
	return secrets, members, err
}

// memberOf returns the name among members of the Cluster or Host that a Secret is labelled for.
func memberOf(secret *metav1.PartialObjectMetadata) types.NamespacedName {
	switch secret.Labels[v1.LabelSecretKind] {
	case v1.SecretKindHostJoin, v1.SecretKindHostAgent:
		return types.NamespacedName{Namespace: secret.Namespace, Name: protocol.HostMember(secret.Labels[v1.LabelHost])}
	}
	return types.NamespacedName{Namespace: secret.Namespace, Name: secret.Labels[v1.LabelCluster]}
}

// memberResource returns the resource of the Cluster or Host that is a member.
func memberResource(member types.NamespacedName) string {
	if _, isHost := protocol.HostOf(member.Name); isHost {
		return "hosts"
	}
	return "clusters"
}

// named reports whether a Secret has the name by which the hub looks it up. Users may make others with the same labels.
func named(secret *metav1.PartialObjectMetadata, member types.NamespacedName) bool {
	return slices.Contains([]types.NamespacedName{registration.AgentSecret(member), registration.RegistrationSecret(member)}, client.ObjectKeyFromObject(secret))
}

// byName orders by workspace and member, and the join token before the identity: once the identity is deleted, only the
// log of it says that the token must go.
func byName(a, b revocation) int {
	return cmp.Or(cmp.Compare(a.object.Namespace, b.object.Namespace), cmp.Compare(a.member.Name, b.member.Name), cmp.Compare(b.object.Name, a.object.Name))
}

// latestKnown returns since, or what the hub knows if that is zero.
func latestKnown(hub, since time.Time) time.Time {
	if since.IsZero() {
		return hub
	}
	return since
}

func ownedBy(secret, owner *metav1.PartialObjectMetadata) bool {
	return slices.ContainsFunc(secret.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == owner.UID })
}

// revoked returns the request that ended what a Secret stands for, if the hub has forgotten it.
func (l *auditLog) revoked(hub restoredObjects, member types.NamespacedName, secret *metav1.PartialObjectMetadata, since time.Time) (auditRequest, bool) {
	began := secret.CreationTimestamp.Time
	gone := []auditRequest{l.deletion("secrets", secret), l.deletion(memberResource(member), hub.members[member]),
		l.deleted[auditObject{resource: "namespaces", name: secret.Namespace}]}
	switch secret.Labels[v1.LabelSecretKind] {
	case v1.SecretKindRegistration, v1.SecretKindHostJoin:
		began = registration.TokenCreated(secret)
		agent := registration.AgentSecret(member) // its agent may have joined by this token after the backup
		gone = append(gone, l.deleted[auditObject{"secrets", agent.Namespace, agent.Name}])
		if joined := l.changed[auditObject{"secrets", agent.Namespace, agent.Name}]; forgotten(joined, hub.changed[agent], since) {
			gone = append(gone, joined)
		}
	case v1.SecretKindAgent, v1.SecretKindHostAgent:
		// Another agent has joined since.
		if joined := l.changed[auditObject{"secrets", secret.Namespace, secret.Name}]; forgotten(joined, hub.changed[client.ObjectKeyFromObject(secret)], since) {
			gone = append(gone, joined)
		}
	default:
		return auditRequest{}, false
	}
	latest := slices.MaxFunc(gone, func(a, b auditRequest) int { return a.done.Compare(b.done) })
	return latest, latest.done.After(latestKnown(began, since))
}

// forgotten reports whether a write of a Secret came later than the last that the hub has. Its times have no fractions.
func forgotten(write auditRequest, last, since time.Time) bool {
	return write.received.Truncate(time.Second).After(latestKnown(last, since))
}

// deletion returns the latest request that deleted an object of that name, alone or in a collection.
func (l *auditLog) deletion(resource string, o *metav1.PartialObjectMetadata) auditRequest {
	latest := l.deleted[auditObject{resource, o.Namespace, o.Name}]
	for _, c := range l.collections {
		if c.resource == resource && (c.namespace == o.Namespace || c.namespace == "") && c.done.After(latest.done) && c.selects(o) {
			latest = c.auditRequest
		}
	}
	return latest
}

// lastChange returns when an object was changed last, as its API server has noted it.
func lastChange(o *metav1.PartialObjectMetadata) time.Time {
	last := o.CreationTimestamp.Time
	for _, entry := range o.ManagedFields {
		if entry.Time != nil && entry.Time.After(last) {
			last = entry.Time.Time
		}
	}
	return last
}
