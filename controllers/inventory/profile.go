// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"encoding/json"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/clusterprofile"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tenancy"
)

const (
	// Manager is the name of the cluster manager in Drover's profiles.
	Manager = "drover"
	// LabelManager is the label that contains the name of a profile's cluster manager.
	LabelManager = "x-k8s.io/cluster-manager"
	// provider is the name of Drover's access provider. Consumers map this name to a command that creates credentials.
	provider = "drover"
	// execExtension is the extension that client-go passes to exec plugins as spec.cluster.config.
	execExtension = "client.authentication.k8s.io/exec"
)

// Conditions of a profile (KEP-4322).
const (
	ConditionHealthy = "ControlPlaneHealthy"
	ConditionJoined  = "Joined"
)

// Properties of a profile. Two of them are defined in KEP-2149. Drover defines the others.
const (
	propertyID           = "cluster.clusterset.k8s.io"
	propertySet          = "clusterset.k8s.io"
	propertyDistribution = v1.LabelDistribution
)

// maxValue is the maximum length of a property's value.
const maxValue = 1024

// desired returns the desired profile of a Cluster. If a condition has not changed, it keeps its earlier transition
// time.
func desired(cluster *v1.Cluster, settings protocol.Settings, before []metav1.Condition) *clusterprofile.ClusterProfile {
	profile := &clusterprofile.ClusterProfile{
		TypeMeta:   metav1.TypeMeta{APIVersion: clusterprofile.GroupVersion.String(), Kind: "ClusterProfile"},
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name, Labels: labels(cluster)},
		Spec:       clusterprofile.ClusterProfileSpec{DisplayName: cluster.Name, ClusterManager: clusterprofile.ClusterManager{Name: Manager}},
		Status: clusterprofile.ClusterProfileStatus{
			Version:         clusterprofile.Version{Kubernetes: cluster.Status.Version},
			Properties:      properties(cluster),
			AccessProviders: access(cluster, settings),
		},
	}
	profile.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1.GroupVersion.String(), Kind: "Cluster", Name: cluster.Name, UID: cluster.UID}}
	for _, from := range []struct{ condition, to string }{{v1.ConditionReady, ConditionHealthy}, {v1.ConditionRegistered, ConditionJoined}} {
		profile.Status.Conditions = append(profile.Status.Conditions, translate(cluster, from.condition, from.to, before))
	}
	return profile
}

// labels returns the labels of a profile. They include the Cluster's labels, so that tools can select profiles in the
// same way as Clusters.
func labels(cluster *v1.Cluster) map[string]string {
	all := maps.Clone(cluster.Labels)
	if all == nil {
		all = map[string]string{}
	}
	for key := range all {
		if tenancy.ClaimsOwnership(key) && key != v1.LabelDistribution && key != v1.LabelVersion {
			delete(all, key) // the tool that applied the Cluster does not own the profile
		}
	}
	all[LabelManager], all[v1.LabelManagedBy] = Manager, v1.ManagedBy
	return all
}

// translate returns a condition of the Cluster as a condition of the profile.
func translate(cluster *v1.Cluster, from, to string, before []metav1.Condition) metav1.Condition {
	c := metav1.Condition{Type: to, Status: metav1.ConditionUnknown, Reason: v1.ReasonPending, LastTransitionTime: cluster.CreationTimestamp}
	if found := meta.FindStatusCondition(cluster.Status.Conditions, from); found != nil {
		c.Status, c.Reason, c.Message, c.LastTransitionTime = found.Status, found.Reason, found.Message, found.LastTransitionTime
	}
	if c.LastTransitionTime.IsZero() {
		c.LastTransitionTime = cluster.CreationTimestamp
	}
	if was := meta.FindStatusCondition(before, to); was != nil && was.Status == c.Status {
		c.LastTransitionTime = was.LastTransitionTime
	}
	return c
}

// properties returns facts that rarely change. They do not include the cluster's usage, or other values that change
// while the cluster is idle.
func properties(cluster *v1.Cluster) []clusterprofile.Property {
	var known []clusterprofile.Property
	for _, p := range []clusterprofile.Property{
		{Name: propertyID, Value: cluster.Status.ClusterUID},
		{Name: propertySet, Value: cluster.Namespace},
		{Name: propertyDistribution, Value: cluster.Status.Distribution},
	} {
		if p.Value != "" && len(p.Value) <= maxValue {
			known = append(known, p)
		}
	}
	return known
}

// access returns the access provider for the hub's proxy. The provider contains no credentials. It passes the audience
// for tokens to the exec plugin. Tokens with this audience are valid only for this cluster.
func access(cluster *v1.Cluster, settings protocol.Settings) []clusterprofile.AccessProvider {
	if len(settings.Servers) == 0 {
		return nil
	}
	server := settings.Servers[0] + protocol.PathClusters + cluster.Namespace + "/" + cluster.Name
	config, err := json.Marshal(map[string]string{"audience": server})
	if err != nil {
		panic(fmt.Sprintf("audience %q: %v", server, err)) // every string can be encoded as JSON
	}
	way := clusterprofile.AccessProvider{Name: provider, Cluster: clientcmdv1.Cluster{
		Server:     server,
		Extensions: []clientcmdv1.NamedExtension{{Name: execExtension, Extension: runtime.RawExtension{Raw: config}}},
	}}
	if settings.CABundle != "" {
		way.Cluster.CertificateAuthorityData = []byte(settings.CABundle)
	}
	return []clusterprofile.AccessProvider{way}
}
