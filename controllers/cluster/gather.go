// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
)

// syncRecheck is the interval at which the manager checks whether it knows which members are connected to the other
// replicas.
const syncRecheck = time.Second

// chosenTokenRecheck is the interval at which the user's Secret is read again while no agent can join with its token.
// The interval is needed because such Secrets are not watched.
const chosenTokenRecheck = 30 * time.Second

// input contains everything that a reconcile has read and decided so far.
type input struct {
	cluster *v1.Cluster
	name    types.NamespacedName
	now     time.Time
	settled time.Time // time after which a missing agent counts as lost
	synced  bool      // whether the members that are connected to other replicas are known

	// secret is the registration Secret, or nil if it does not exist. gather sets this field.
	secret *corev1.Secret
	// foreignSecret is true if a Secret that Drover did not create has the registration Secret's name. register sets
	// this field.
	foreignSecret bool
	// chosen is the token in the user's Secret, or the problem with that Secret. gather sets chosen if the spec refers
	// to a Secret.
	chosen struct{ value, problem string }
	// identity is the identity of the agent that joined, or nil if no agent has joined. gather sets this field.
	identity *registration.AgentIdentity
	// tooMany is the workspace's limit on Clusters if this Cluster exceeds it and nothing has been created for the
	// Cluster yet. Otherwise, tooMany is 0. gather sets this field.
	tooMany int
	// member is the member's state in the registry. gather sets this field.
	member members.State
	// settings are the settings that the agent should have. gather sets this field.
	settings protocol.Settings

	// token is the token in force. register sets this field.
	token registration.Token
	// registerErr is the error from writing the registration Secret. Reconcile sets this field.
	registerErr error
	// announced is the call that sends the settings. It is zero if the agent already has the current settings. announce
	// sets this field.
	announced members.Call
	// deployed contains the Deployment that results from the spec. It also contains the call that sends this Deployment
	// to the agent. deploy sets this field.
	deployed deployed
}

// gather reads everything that a reconcile depends on.
func (r *Reconciler) gather(ctx context.Context, cluster *v1.Cluster) (*input, error) {
	in := &input{
		cluster:  cluster,
		name:     client.ObjectKeyFromObject(cluster),
		now:      r.Now(),
		settled:  r.settled(),
		synced:   r.Synced == nil || r.Synced(),
		settings: r.Settings(),
	}
	if !in.synced && in.settled.Before(in.now.Add(syncRecheck)) {
		in.settled = in.now.Add(syncRecheck)
	}
	in.member = r.Members.State(in.name)
	var err error
	if in.secret, in.foreignSecret, err = registration.SecretOf(ctx, r.Client, cluster); err != nil {
		return nil, err
	}
	if in.identity, err = registration.AgentOf(ctx, r.Client, cluster); err != nil {
		return nil, err
	}
	if !in.peersRightful() { // the cache might not contain a very recent join yet
		if in.identity, err = registration.AgentOf(ctx, r.Live, cluster); err != nil {
			return nil, err
		}
	}
	if in.identity == nil && in.secret == nil && !r.Places.has(cluster) {
		in.tooMany = r.Places.most
	}
	return in, r.gatherChosenToken(ctx, in)
}

func (in *input) peersRightful() bool {
	keep := rightful(in.cluster, in.identity)
	return !slices.ContainsFunc(in.member.Peers, func(p members.Peer) bool { return !keep(p) })
}

func (r *Reconciler) gatherChosenToken(ctx context.Context, in *input) error {
	ref := in.cluster.Spec.Registration.TokenSecretRef
	if ref == nil {
		return nil
	}
	if len(validation.IsDNS1123Subdomain(ref.Name)) > 0 { // the client rejects some invalid names on every read
		in.chosen.problem = fmt.Sprintf("no Secret can have the name %q; name one with a join token in its key %s",
			ref.Name, ref.Key)
		return nil
	}
	secret, err := owned.ReadSecret(ctx, r.Live, types.NamespacedName{Namespace: in.name.Namespace, Name: ref.Name})
	switch {
	case err != nil:
		return err
	case secret == nil:
		in.chosen.problem = fmt.Sprintf("Secret %s does not exist; create it with a join token in its key %s", ref.Name, ref.Key)
	case len(secret.Data[ref.Key]) == 0:
		in.chosen.problem = fmt.Sprintf("Secret %s has no key %s; put a join token there", ref.Name, ref.Key)
	case !registration.ValidToken(string(secret.Data[ref.Key])):
		in.chosen.problem = fmt.Sprintf("the token in Secret %s, key %s, is not 32 to 256 characters of [A-Za-z0-9._~-]", ref.Name, ref.Key)
	default:
		in.chosen.value = string(secret.Data[ref.Key])
	}
	return nil
}

// settling reports whether it is too early to change the status of a Cluster whose agent joined before this manager
// started. It is too early if the agent has not reconnected or has not reported yet, and the status is still Ready or
// empty.
func (in *input) settling() bool {
	silent := in.member.Report == nil && in.member.ReportErr == nil
	if in.identity == nil || !silent || in.synced && !in.member.LastSeen.IsZero() || !in.now.Before(in.settled) {
		return false
	}
	// the default status of the condition is Unknown
	return !meta.IsStatusConditionFalse(in.cluster.Status.Conditions, v1.ConditionReady)
}

// movingTime is how long a disconnected agent may take to reconnect to another replica. Agents open the new tunnel
// before they close the old one, but this manager may observe the two changes in the opposite order.
const movingTime = time.Second

// arrivalTime is how long an agent that has joined may take to connect, and then to report, before the status shows the
// delay. Both steps usually take milliseconds, so that the status is written only once.
const arrivalTime = 2 * time.Second

// arriving returns the deadline for the first report of an agent that has just joined or connected. It returns the zero
// time if the agent has already reported.
func (in *input) arriving() time.Time {
	switch {
	case in.identity == nil || in.member.Report != nil || in.member.ReportErr != nil:
		return time.Time{}
	case in.member.Connected():
		var opened int64
		for _, p := range in.member.Peers {
			opened = max(opened, p.Epoch)
		}
		return time.Unix(0, opened).Add(arrivalTime)
	case in.awaitingTunnel():
		return in.identity.Joined.Add(arrivalTime)
	}
	return time.Time{}
}

// replicaTime is how long a member must be connected only through node agents before the status shows this. After an
// outage of the hub, the node agents of many members may connect a few seconds before the replicas.
const replicaTime = 20 * time.Second

// awaitingReplica returns the deadline for a replica of the agent to connect. It returns the zero time if no replica is
// awaited. A replica is awaited if the status shows that the agent is connected, but only a node agent is connected.
func (in *input) awaitingReplica() time.Time {
	was := meta.FindStatusCondition(in.cluster.Status.Conditions, v1.ConditionReady)
	if !in.member.ByNodeAgent() || was == nil || was.Status != metav1.ConditionTrue || was.Reason == v1.ReasonConnectedByNodeAgent {
		return time.Time{}
	}
	first := in.member.Peers[0].Epoch
	for _, p := range in.member.Peers {
		first = min(first, p.Epoch)
	}
	return time.Unix(0, first).Add(replicaTime)
}

// cloned reports whether the status says that two clusters share the Cluster's identity. A manager that has just
// started knows this only from the status.
func (in *input) cloned() bool {
	was := meta.FindStatusCondition(in.cluster.Status.Conditions, v1.ConditionConnected)
	return in.member.Connected() && in.member.Clones == nil && was != nil && was.Reason == v1.ReasonIdentityMismatch
}

// tooEarly returns the time until which the member's status cannot be determined, or the zero time if it can be
// determined now.
func (in *input) tooEarly() time.Time {
	arrived := in.member.LastSeen.Add(movingTime)
	switch {
	// the member's tunnel to this replica has closed, so the member is lost unless it is connected to another replica
	case in.settling() && !in.member.LastSeen.IsZero():
		return in.now.Add(syncRecheck)
	case in.settling(), in.cloned() && in.now.Before(in.settled):
		return in.settled
	case in.identity != nil && !in.member.Connected() && in.now.Before(in.member.Returning) &&
		(in.member.Refusal == nil || in.member.Refusal.Unproven) && meta.IsStatusConditionTrue(in.cluster.Status.Conditions, v1.ConditionReady):
		return in.member.Returning
	case in.identity != nil && in.member.Left && !in.member.Connected() && in.now.Before(arrived) &&
		meta.IsStatusConditionTrue(in.cluster.Status.Conditions, v1.ConditionReady):
		return arrived
	case in.now.Before(in.arriving()):
		return in.arriving()
	case in.now.Before(in.awaitingReplica()):
		return in.awaitingReplica()
	}
	return time.Time{}
}

// awaitingTunnel reports whether the agent has joined so recently that a missing tunnel does not count as lost yet.
func (in *input) awaitingTunnel() bool {
	return in.member.LastSeen.IsZero() && in.cluster.Status.LastSeen == nil && in.now.Before(in.tunnelExpected())
}

func (in *input) tunnelExpected() time.Time {
	if expected := in.identity.Joined.Add(settleTime); expected.After(in.settled) {
		return expected
	}
	return in.settled
}

// lookAgain returns the time after which the status will change without any event, or zero if it will not change.
func (in *input) lookAgain() time.Duration {
	var moments []time.Time
	switch {
	case in.identity == nil:
		moments = append(moments, in.token.Expires())
		if in.cluster.Spec.Registration.TokenSecretRef != nil {
			moments = append(moments, in.now.Add(chosenTokenRecheck))
		}
	case !in.member.Connected() && in.awaitingTunnel():
		moments = append(moments, in.tunnelExpected())
	}
	if due := in.upgradeDue(); !due.IsZero() {
		moments = append(moments, due)
	}
	if !in.announced.At.IsZero() {
		moments = append(moments, in.announced.At.Add(members.CallPause))
	}
	if !in.deployed.At.IsZero() && !in.deployed.refused() {
		moments = append(moments, in.deployed.At.Add(members.CallPause))
	}
	if in.foreignSecret {
		moments = append(moments, in.now.Add(chosenTokenRecheck))
	}
	if until := in.continuousUntil(); !until.IsZero() {
		moments = append(moments, until)
	}
	if in.member.Refusal != nil {
		moments = append(moments, in.member.Refusal.At.Add(members.RefusalMemory))
	}
	var wait time.Duration
	for _, moment := range moments {
		if left := moment.Sub(in.now); left > 0 && (wait == 0 || left < wait) {
			wait = left
		}
	}
	return wait
}
