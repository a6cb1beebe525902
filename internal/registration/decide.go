// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// uidForm is the accepted format of a namespace's UID. UIDs appear in statuses, events and logs, so values in any other
// format are rejected.
var uidForm = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

// JoinInput contains everything that the decision about a join depends on.
type JoinInput struct {
	// Cluster is the name of the object, in the format "namespace/name". OwnerUID is the object's UID.
	Cluster  string
	OwnerUID types.UID
	// Token is the token that the agent has presented. It comes from the Cluster's registration Secret.
	Token Token
	// Current is the identity of the Cluster's agent. It is nil if no agent has joined.
	Current *AgentIdentity
	Request protocol.RegisterRequest
	Now     time.Time
}

// Join is the result of a join that has not been refused.
type Join struct {
	// Identity is the agent's new identity.
	Identity AgentIdentity
	// Write reports whether Identity differs from the current one.
	Write bool
}

// DecideJoin returns the identity of a Cluster's agent after a join request. It has no side effects.
//
// A token lets one agent join. If the same agent presents the token again and uses the same key in the same cluster,
// the request is a retry and succeeds. If a different cluster presents the token, the join is refused with
// IdentityMismatch. A new token replaces both the key and the member, so a rebuilt member can join its Cluster again.
func DecideJoin(in JoinInput) (Join, *RefusalError) {
	if err := checkRequest(in); err != nil {
		return Join{}, err
	}
	asked := AgentIdentity{
		PublicKey:  in.Request.PublicKey,
		ClusterUID: in.Request.ClusterUID,
		TokenHash:  HashToken(in.Token.Value),
		OwnerUID:   in.OwnerUID,
		Joined:     in.Now,
	}
	current := in.Current
	if current == nil || current.OwnerUID != in.OwnerUID || current.TokenHash != asked.TokenHash {
		if err := in.Token.Usable(in.Cluster, in.Now); err != nil {
			return Join{}, err
		}
		return Join{Identity: asked, Write: true}, nil
	}
	_, isHost := protocol.HostOf(in.Cluster[strings.LastIndex(in.Cluster, "/")+1:])
	switch {
	case isHost && (current.ClusterUID != asked.ClusterUID || !bytes.Equal(current.PublicKey, asked.PublicKey)):
		return Join{}, refuse(v1.ReasonTokenUsed,
			"the join token of %s was used by another machine; give each its own Host, or delete the Secret %s for a new token "+
				"if this one is to take its place", called(in.Cluster), secretName(in.Cluster))
	case current.ClusterUID != asked.ClusterUID:
		return Join{}, refuse(v1.ReasonIdentityMismatch,
			"the cluster with kube-system UID %s showed the join token of cluster %s, which the cluster with UID %s has used; "+
				"give each cluster its own Cluster object, or delete the Secret %s for a new token if this one is to take its "+
				"place",
			asked.ClusterUID, in.Cluster, current.ClusterUID, secretName(in.Cluster))
	case !bytes.Equal(current.PublicKey, asked.PublicKey):
		return Join{}, refuse(v1.ReasonTokenUsed,
			"the join token of cluster %s was used with another key of the same cluster; delete the Secret %s and apply the "+
				"new manifest in the member",
			in.Cluster, secretName(in.Cluster))
	}
	return Join{Identity: *current}, nil
}

func checkRequest(in JoinInput) *RefusalError {
	r := in.Request
	switch {
	case len(r.PublicKey) != ed25519.PublicKeySize:
		return refuse(v1.ReasonIdentityMismatch, "publicKey must be an Ed25519 key of %d bytes", ed25519.PublicKeySize)
	case !uidForm.MatchString(r.ClusterUID):
		return refuse(v1.ReasonIdentityMismatch, "clusterUID must be the UID of the namespace kube-system")
	case !ed25519.Verify(r.PublicKey, protocol.ProofPayload(in.Token.Value, r.ClusterUID), r.Proof):
		return refuse(v1.ReasonIdentityMismatch, "proof does not verify with publicKey")
	}
	return nil
}

// CheckConnect returns nil if verified claims match a Cluster's agent, and the reason for a refusal otherwise. It has
// no side effects.
func CheckConnect(claims protocol.ConnectClaims, owner client.Object, id *AgentIdentity) *RefusalError {
	switch {
	case id.OwnerUID != owner.GetUID() || !id.knownAs(claims.Cluster.UID):
		if _, isHost := owner.(*v1.Host); isHost {
			return refuse(v1.ReasonIdentityMismatch,
				"%s was deleted and recreated, or restored from a backup, since this agent joined; run the command in Secret %s "+
					"on the machine to join again", called(claims.Cluster.String()), secretName(claims.Cluster.String()))
		}
		return refuse(v1.ReasonIdentityMismatch,
			"cluster %s was deleted and recreated, or restored from a backup, since this agent joined; after a restore an "+
				"administrator of the hub can keep the agent with \"kubectl drover adopt %s -w %s\"; otherwise apply the "+
				"manifest in Secret %s in the member to join again",
			claims.Cluster, owner.GetName(), owner.GetNamespace(), secretName(claims.Cluster.String()))
	case claims.ClusterUID != id.ClusterUID:
		return refuse(v1.ReasonIdentityMismatch,
			"the agent's cluster has the kube-system UID %s, but cluster %s joined with %s",
			protocol.Cut(claims.ClusterUID, 64), claims.Cluster, id.ClusterUID)
	}
	return nil
}

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
