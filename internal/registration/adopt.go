// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Adoption is what it takes for the agent in a Cluster's agent Secret to be the Cluster's.
type Adoption struct {
	// Identity of the agent as it is to be written. Nil if there is nothing to write.
	Identity *AgentIdentity
	// Problem says why the agent cannot be adopted, and what to do. Empty if it can, or if it is the Cluster's already.
	Problem string
}

// DecideAdoption returns how the agent that joined a former Cluster object of this name becomes the agent of this one,
// as after a restore from a backup. Secret is the Cluster's agent Secret, nil if there is none. It is pure.
//
// Key and member stay as they are in the Secret, so that no other agent comes in by it.
func DecideAdoption(cluster *v1.Cluster, secret *corev1.Secret) Adoption {
	again := "; apply the manifest in Secret " + cluster.Name + v1.RegistrationSecretSuffix + " in the member instead"
	switch {
	case !cluster.DeletionTimestamp.IsZero():
		return Adoption{Problem: "the Cluster is being deleted"}
	case secret == nil:
		return Adoption{Problem: "no agent is known: there is no Secret " + cluster.Name + v1.AgentSecretSuffix + again}
	case !Ours(secret, cluster.Name, v1.SecretKindAgent):
		return Adoption{Problem: "Secret " + secret.Name + " is not Drover's, or has lost its labels: restore it with them, or rename it"}
	}
	id, err := ReadIdentity(secret)
	switch {
	case err != nil:
		return Adoption{Problem: err.Error() + again}
	case id.OwnerUID == cluster.UID:
		return Adoption{}
	case !uidForm.MatchString(id.ClusterUID) || !uidForm.MatchString(string(id.OwnerUID)):
		return Adoption{Problem: "Secret " + secret.Name + " does not say which member and Cluster the agent joined as" + again}
	}
	id.FormerOwner = cmp.Or(id.FormerOwner, id.OwnerUID) // an agent that was adopted before goes on with its first UID
	id.OwnerUID = cluster.UID
	return Adoption{Identity: id}
}
