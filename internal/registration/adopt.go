// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Adoption is the result of DecideAdoption.
type Adoption struct {
	// Identity is the agent's new identity. It is nil if there is nothing to write.
	Identity *AgentIdentity
	// Problem explains why the agent cannot be adopted, and how to solve the problem. It is empty if the agent can be
	// adopted, or if it is already the Cluster's agent.
	Problem string
}

// DecideAdoption decides how the agent of an earlier Cluster object with the same name becomes the agent of the
// current Cluster object, for example after a restore from a backup. secret is the Cluster's agent Secret, or nil if
// there is none. DecideAdoption has no side effects.
//
// The key and the member UID in the Secret stay the same, so no other agent can gain access through an adoption.
func DecideAdoption(cluster *v1.Cluster, secret *corev1.Secret) Adoption {
	again := "; apply the manifest in Secret " + cluster.Name + v1.RegistrationSecretSuffix + " in the member instead"
	switch {
	case !cluster.DeletionTimestamp.IsZero():
		return Adoption{Problem: "the Cluster is being deleted"}
	case secret == nil:
		return Adoption{Problem: "no agent is known: there is no Secret " + cluster.Name + v1.AgentSecretSuffix + again}
	case !Ours(secret, cluster.Name, v1.SecretKindAgent):
		return Adoption{Problem: "Secret " + secret.Name +
			" is not Drover's, or has lost its labels: restore it with them, or rename it"}
	}
	id, err := ReadIdentity(secret)
	switch {
	case err != nil:
		return Adoption{Problem: err.Error() + again}
	case id.OwnerUID == cluster.UID:
		return Adoption{}
	case !uidForm.MatchString(id.ClusterUID) || !uidForm.MatchString(string(id.OwnerUID)):
		return Adoption{Problem: "Secret " + secret.Name + " does not say which member and Cluster the agent joined as" +
			again}
	}
	id.FormerOwner = cmp.Or(id.FormerOwner, id.OwnerUID) // an agent that was adopted before keeps the first UID
	id.OwnerUID = cluster.UID
	return Adoption{Identity: id}
}
