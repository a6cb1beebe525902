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

// restoredObjects contains the metadata of objects on the hub that identify agents.
type restoredObjects struct {
	members map[types.NamespacedName]*metav1.PartialObjectMetadata // Clusters and Hosts by member name
	secrets []metav1.PartialObjectMetadata
	changed map[types.NamespacedName]time.Time // the last change of each Secret
	renewed time.Time                          // last renewal of the manager's Lease, or zero if no Lease exists
}

// revocation is a restored object that was deleted or replaced after the last change that the hub knows about. The
// audit log contains the deletion or replacement.
type revocation struct {
	member  types.NamespacedName // member name of the object itself, or of the object's Cluster or Host
	object  *metav1.PartialObjectMetadata
	request auditRequest
}

// revocations returns the Secrets with the identity or the join token of agents that were revoked after the backup, and
// the Clusters and Hosts that were deleted after the backup. If it cannot determine whether some Secrets were revoked,
// it returns an error together with the results for all other Secrets. It has no side effects.
//
// The hub has lost a request if the request is later than the hub's own state. If etcd was restored, the times in the
// hub's objects show how recent that state is, and since is zero. If the objects were recreated from a backup, since is
// the time of the backup.
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
		if owner == nil || !named(secret, member) { // no agent can join or connect with this Secret
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
		err = fmt.Errorf("%d Secrets are not owned by the current Cluster or Host, for example %s. If the objects were restored without their UIDs, their times cannot be used:  "+
			"set --since to the time of the backup. Otherwise, someone else created these Secrets: delete them", n, strings.Join(foreign[:min(n, 5)], ", "))
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

// memberOf returns the member name of the Cluster or Host that a Secret's labels refer to.
func memberOf(secret *metav1.PartialObjectMetadata) types.NamespacedName {
	switch secret.Labels[v1.LabelSecretKind] {
	case v1.SecretKindHostJoin, v1.SecretKindHostAgent:
		return types.NamespacedName{Namespace: secret.Namespace, Name: protocol.HostMember(secret.Labels[v1.LabelHost])}
	}
	return types.NamespacedName{Namespace: secret.Namespace, Name: secret.Labels[v1.LabelCluster]}
}

// memberResource returns the resource that a member name belongs to: "clusters" or "hosts".
func memberResource(member types.NamespacedName) string {
	if _, isHost := protocol.HostOf(member.Name); isHost {
		return "hosts"
	}
	return "clusters"
}

// named reports whether a Secret has the name that the hub looks up. The labels alone are not sufficient, because users
// can create other Secrets with the same labels.
func named(secret *metav1.PartialObjectMetadata, member types.NamespacedName) bool {
	return slices.Contains([]types.NamespacedName{registration.AgentSecret(member), registration.RegistrationSecret(member)}, client.ObjectKeyFromObject(secret))
}

// byName sorts revocations by workspace and member. The join token comes before the identity, because once the identity
// has been deleted, only the audit log shows that the token must also be deleted.
func byName(a, b revocation) int {
	return cmp.Or(cmp.Compare(a.object.Namespace, b.object.Namespace), cmp.Compare(a.member.Name, b.member.Name),
		cmp.Compare(b.object.Name, a.object.Name))
}

func latestKnown(hub, since time.Time) time.Time {
	if since.IsZero() {
		return hub
	}
	return since
}

func ownedBy(secret, owner *metav1.PartialObjectMetadata) bool {
	return slices.ContainsFunc(secret.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == owner.UID })
}

// revoked returns the request that revoked a Secret, if the hub has lost that request.
func (l *auditLog) revoked(hub restoredObjects, member types.NamespacedName, secret *metav1.PartialObjectMetadata, since time.Time) (auditRequest, bool) {
	began := secret.CreationTimestamp.Time
	gone := []auditRequest{l.deletion("secrets", secret), l.deletion(memberResource(member), hub.members[member]),
		l.deleted[auditObject{resource: "namespaces", name: secret.Namespace}]}
	switch secret.Labels[v1.LabelSecretKind] {
	case v1.SecretKindRegistration, v1.SecretKindHostJoin:
		began = registration.TokenCreated(secret)
		agent := registration.AgentSecret(member) // an agent may have joined with this token after the backup
		gone = append(gone, l.deleted[auditObject{"secrets", agent.Namespace, agent.Name}])
		if joined := l.changed[auditObject{"secrets", agent.Namespace, agent.Name}]; forgotten(joined, hub.changed[agent], since) {
			gone = append(gone, joined)
		}
	case v1.SecretKindAgent, v1.SecretKindHostAgent:
		// Another agent has joined since the backup, and its identity has replaced the identity in this Secret.
		if joined := l.changed[auditObject{"secrets", secret.Namespace, secret.Name}]; forgotten(joined, hub.changed[client.ObjectKeyFromObject(secret)], since) {
			gone = append(gone, joined)
		}
	default:
		return auditRequest{}, false
	}
	latest := slices.MaxFunc(gone, func(a, b auditRequest) int { return a.done.Compare(b.done) })
	return latest, latest.done.After(latestKnown(began, since))
}

// forgotten reports whether a Secret was written after the last write that the hub knows about. The times in the hub's
// objects are rounded down to whole seconds.
func forgotten(write auditRequest, last, since time.Time) bool {
	return write.received.Truncate(time.Second).After(latestKnown(last, since))
}

// deletion returns the latest request that deleted an object with this name, either alone or as part of a collection.
func (l *auditLog) deletion(resource string, o *metav1.PartialObjectMetadata) auditRequest {
	latest := l.deleted[auditObject{resource, o.Namespace, o.Name}]
	for _, c := range l.collections {
		if c.resource == resource && (c.namespace == o.Namespace || c.namespace == "") && c.done.After(latest.done) && c.selects(o) {
			latest = c.auditRequest
		}
	}
	return latest
}

// lastChange returns the time when an object was last changed, according to its managed fields.
func lastChange(o *metav1.PartialObjectMetadata) time.Time {
	last := o.CreationTimestamp.Time
	for _, entry := range o.ManagedFields {
		if entry.Time != nil && entry.Time.After(last) {
			last = entry.Time.Time
		}
	}
	return last
}
