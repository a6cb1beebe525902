// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

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
	"github.com/drover-dev/drover/internal/registration"
)

// restoredObjects are those of a hub that say who its agents are, without their content.
type restoredObjects struct {
	clusters map[types.NamespacedName]*metav1.PartialObjectMetadata
	secrets  []metav1.PartialObjectMetadata
}

// revocation is a restored object that the audit log shows to have been deleted, or replaced, later than the hub knows.
type revocation struct {
	object  *metav1.PartialObjectMetadata
	request auditRequest
}

// revocations returns the Secrets with the identity or the join token of agents that were revoked since the backup, and the Clusters that were deleted
// since. It is pure. With the error for Secrets of which it cannot be told, it returns the others.
//
// A request is one that the hub has forgotten if it came later than what the hub has: its etcd brought the times of its objects back. Since is the time
// of the backup, where objects were made anew by the restore, zero if they were not.
func (l *auditLog) revocations(hub restoredObjects, since time.Time) (secrets, clusters []revocation, err error) {
	var foreign []string
	for i := range hub.secrets {
		secret := &hub.secrets[i]
		cluster := hub.clusters[types.NamespacedName{Namespace: secret.Namespace, Name: secret.Labels[v1.LabelCluster]}]
		if cluster == nil || !named(secret, cluster) { // no agent can join or connect by it
			continue
		}
		if since.IsZero() && !ownedBy(secret, cluster) {
			foreign = append(foreign, secret.Namespace+"/"+secret.Name)
		}
		if request, revoked := l.revoked(secret, cluster, since); revoked {
			secrets = append(secrets, revocation{secret, request})
		}
	}
	if n := len(foreign); n > 0 {
		slices.Sort(foreign)
		err = fmt.Errorf("%d Secrets are of other objects than the Clusters of their names, as %s: where objects were restored without their UIDs, their times say nothing; "+
			"give the time of the backup with --since. If the others have theirs, someone made these: delete them", n, strings.Join(foreign[:min(n, 5)], ", "))
	}
	for _, cluster := range hub.clusters {
		if request := l.deletion("clusters", cluster); cluster.DeletionTimestamp.IsZero() && request.done.After(latestKnown(cluster.CreationTimestamp.Time, since)) {
			clusters = append(clusters, revocation{cluster, request})
		}
	}
	slices.SortFunc(secrets, byName)
	slices.SortFunc(clusters, byName)
	return secrets, clusters, err
}

// named reports whether a Secret has the name by which the hub looks it up. Users may make others with the same labels.
func named(secret, cluster *metav1.PartialObjectMetadata) bool {
	of := client.ObjectKeyFromObject(cluster)
	return slices.Contains([]types.NamespacedName{registration.AgentSecret(of), registration.RegistrationSecret(of)}, client.ObjectKeyFromObject(secret))
}

// byName orders by workspace and Cluster, and the join token before the identity: once the identity is deleted, only the log of it says that the token must go.
func byName(a, b revocation) int {
	return cmp.Or(cmp.Compare(a.object.Namespace, b.object.Namespace), cmp.Compare(a.object.Labels[v1.LabelCluster], b.object.Labels[v1.LabelCluster]),
		cmp.Compare(b.object.Name, a.object.Name))
}

// latestKnown returns since, or what the hub knows if that is zero.
func latestKnown(hub, since time.Time) time.Time {
	if since.IsZero() {
		return hub
	}
	return since
}

func ownedBy(secret, cluster *metav1.PartialObjectMetadata) bool {
	return slices.ContainsFunc(secret.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == cluster.UID })
}

// revoked returns the request that ended what a Secret stands for, if the hub has forgotten it.
func (l *auditLog) revoked(secret, cluster *metav1.PartialObjectMetadata, since time.Time) (auditRequest, bool) {
	began := secret.CreationTimestamp.Time
	gone := []auditRequest{l.deletion("secrets", secret), l.deletion("clusters", cluster),
		l.deleted[auditObject{resource: "namespaces", name: secret.Namespace}]}
	switch secret.Labels[v1.LabelSecretKind] {
	case v1.SecretKindRegistration:
		began = registration.TokenCreated(secret)
		agent := registration.AgentSecret(client.ObjectKeyFromObject(cluster)) // its agent may have joined by this token after the backup
		gone = append(gone, l.deleted[auditObject{"secrets", agent.Namespace, agent.Name}])
	case v1.SecretKindAgent:
		// Another agent has joined since. The times of the hub have no fractions.
		changed := l.changed[auditObject{"secrets", secret.Namespace, secret.Name}]
		if changed.received.Truncate(time.Second).After(latestKnown(lastChange(secret), since)) {
			gone = append(gone, changed)
		}
	default:
		return auditRequest{}, false
	}
	latest := slices.MaxFunc(gone, func(a, b auditRequest) int { return a.done.Compare(b.done) })
	return latest, latest.done.After(latestKnown(began, since))
}

// deletion returns the latest request that deleted an object of that name, alone or with others.
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
