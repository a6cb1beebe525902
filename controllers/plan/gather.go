// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/internal/tenancy"
	"github.com/drover-dev/drover/internal/untrusted"
)

// silence is how long an agent may take to report its plans before it counts as unavailable.
const silence = 15 * time.Second

// scope is a plan and everything that its next step depends on.
type scope struct {
	plan    *v1.Plan
	release resolved
	// spec is the spec that members receive. secrets are the copies of Secrets that members receive along with the
	// spec.
	spec    *v1.PlanSpec
	secrets []*corev1.Secret
	fleet   rollout.FleetPlan
	// clusters are the Clusters that the plan applies to or has a claim on, sorted by name. members holds more
	// information about the same Clusters, in the same order.
	clusters []rollout.Cluster
	members  []observedMember
	// problem prevents the plan from continuing. While there is a problem, no more members start, and the plan is paused
	// in members that have started.
	problem *index.Problem

	// observed and decision are the planner's results after all steps have been performed.
	observed *rollout.Fleet
	decision rollout.FleetDecision
}

// observedMember contains the facts about a Cluster that the planner does not need.
type observedMember struct {
	object *v1.Cluster // the Cluster as last read or written; shared
	state  MemberState
}

// resolved is a plan's version, together with the reason for that version.
type resolved struct {
	version string // empty if no version is known
	reason  string // reason in the LatestResolved condition
	message string
	next    time.Time // time of the next query to the channel
}

// gather reads everything that a plan depends on. It returns nil while the channel is being queried for the first time,
// because no decision is possible until the channel has responded.
func (r *Reconciler) gather(ctx context.Context, plan *v1.Plan) (*scope, error) {
	s := &scope{plan: plan}
	var known bool
	if s.release, known = r.resolve(plan); !known {
		return nil, nil
	}
	if s.release.version == "" {
		s.fail(s.release.reason, s.release.message, false)
	}
	s.spec = rollout.ForMember(plan.Name, &plan.Spec, cmp.Or(s.release.version, "unknown"))
	if err := r.gatherSecrets(ctx, s); err != nil {
		return nil, err
	}
	return s, r.gatherClusters(ctx, s)
}

// fail records why a plan cannot continue, unless another problem has been recorded already.
func (s *scope) fail(reason, message string, stalled bool) {
	if s.problem == nil {
		s.problem = &index.Problem{Reason: reason, Message: message, Stalled: stalled}
	}
}

// resolve determines the version. The version is unknown while a channel is being queried for the first time. The
// plan's status contains the channel's last version. A new leader uses this version while the channel is unavailable.
func (r *Reconciler) resolve(plan *v1.Plan) (resolved, bool) {
	if plan.Spec.Version != "" {
		return resolved{version: plan.Spec.Version, reason: v1.ReasonVersion, message: "The version is that of the spec"}, true
	}
	answer := r.Channel(plan.Namespace, plan.Spec.Channel)
	found := resolved{version: answer.Version, reason: v1.ReasonChannel, message: "The version was found in the channel", next: answer.Next}
	if was := meta.FindStatusCondition(plan.Status.Conditions, v1.ConditionLatestResolved); found.version == "" && was != nil &&
		was.Reason == v1.ReasonChannel && was.ObservedGeneration == plan.Generation {
		found.version = plan.Status.LatestVersion
	}
	switch {
	case found.version == "" && !answer.Asked:
		return resolved{}, false
	case found.version == "":
		found.reason, found.message = v1.ReasonChannelFailed, fmt.Sprintf("The channel leads to no version: %v", answer.Err)
	case answer.Err != nil:
		found.message = fmt.Sprintf("The version was found in the channel, which does not lead to one at present: %v", answer.Err)
	}
	return found, true
}

// gatherSecrets copies the Secrets that a plan refers to, and computes their hashes.
func (r *Reconciler) gatherSecrets(ctx context.Context, s *scope) error {
	digests := map[string]string{}
	for _, name := range index.PlanSecrets(&s.plan.Spec) {
		source, tooLarge := &corev1.Secret{}, (*index.SecretTooLargeError)(nil)
		err := r.Secrets.Get(ctx, types.NamespacedName{Namespace: s.plan.Namespace, Name: name}, source)
		if apierrors.IsNotFound(err) {
			s.fail(v1.ReasonSecretNotFound, fmt.Sprintf("Secret %s does not exist in namespace %s, or does not have the label %s: \"true\"",
				name, s.plan.Namespace, v1.LabelPlansUse), true)
			continue
		} else if errors.As(err, &tooLarge) {
			s.fail(v1.ReasonSecretRefused, fmt.Sprintf("Secret %s is not copied: %v", name, tooLarge), true)
			continue
		} else if err != nil {
			return fmt.Errorf("read secret %s/%s: %w", s.plan.Namespace, name, err)
		}
		if refusal := tenancy.NeverCopied(source); refusal != "" {
			s.fail(v1.ReasonSecretRefused, fmt.Sprintf("Secret %s is not copied: %s", name, refusal), true)
			continue
		}
		secret := tenancy.Copy(source)
		secret.Namespace, secret.Name = v1.PlansNamespace, rollout.SecretName(s.plan.Name, name)
		delete(secret.Labels, v1.LabelPlansUse)
		s.secrets = append(s.secrets, secret)
		if digests[secret.Name], err = rollout.SecretDigest(secret); err != nil {
			return err
		}
	}
	hash, err := rollout.Hash(&s.spec.NodeWork, s.spec.Version, digests)
	if err != nil {
		return err
	}
	if _, err := rollout.PostCompleteLabels(&s.spec.NodeWork, rollout.Version(s.spec.Version), hash); err != nil {
		s.fail(v1.ReasonInvalidPlan, err.Error()+": change the plan", true)
	}
	revision, err := rollout.Revision(hash, &s.spec.PlanPace)
	s.fleet = rollout.FleetPlan{Name: s.plan.Name, Pace: rollout.PaceOf(&s.plan.Spec), Hash: hash, Revision: revision,
		Resume: s.plan.Annotations[v1.AnnotationResume], Approvals: s.plan.Spec.Approvals}
	if err == nil {
		s.fleet.ApprovalRevision, err = rollout.ApprovalRevision(s.plan.UID, revision, &s.plan.Spec)
	}
	return err
}

// gatherClusters finds the Clusters that a plan applies to or has a claim on.
func (r *Reconciler) gatherClusters(ctx context.Context, s *scope) error {
	selects := labels.Nothing()
	if selector := s.plan.Spec.ClusterSelector; selector != nil {
		var err error
		if selects, err = metav1.LabelSelectorAsSelector(selector); err != nil {
			s.fail(v1.ReasonInvalidSelector, "clusterSelector cannot be used: "+err.Error()+": change the plan", true)
			selects = labels.Nothing()
		}
	}
	var list v1.ClusterList
	if err := r.Client.List(ctx, &list, client.InNamespace(s.plan.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list clusters of %s: %w", s.plan.Namespace, err)
	}
	slices.SortFunc(list.Items, func(a, b v1.Cluster) int { return cmp.Compare(a.Name, b.Name) })
	for i := range list.Items {
		object := r.claims.Newest(&list.Items[i])
		claimed := object.Annotations[v1.PlanLabel(s.plan.Name)] != ""
		selected := s.plan.Spec.ClusterName == object.Name || selects.Matches(labels.Set(object.Labels))
		if !object.DeletionTimestamp.IsZero() || !claimed && !selected {
			continue
		}
		m := observedMember{object: object, state: r.State(s.plan.Name, client.ObjectKeyFromObject(object))}
		s.members = append(s.members, m)
		s.clusters = append(s.clusters, observe(s.plan, m, selected, r.Now()))
	}
	unsettled := r.unsettled(s)
	for i := range s.clusters {
		s.clusters[i].Ask = !s.members[i].state.Reported || unsettled
	}
	if len(s.clusters) == 0 && s.plan.Spec.ClusterName != "" {
		s.fail(v1.ReasonClusterNotFound, fmt.Sprintf("Cluster %s does not exist in namespace %s", s.plan.Spec.ClusterName, s.plan.Namespace), false)
	}
	return nil
}

// observe returns a Cluster in the form that the planner uses.
func observe(plan *v1.Plan, m observedMember, selected bool, now time.Time) rollout.Cluster {
	c := rollout.Cluster{
		Name: m.object.Name, Labels: m.object.Labels, Selected: selected, Claim: readClaim(m.object, plan.Name),
		Hold: m.state.Hold, Status: rollout.StatusOf(m.state.Status),
		Unreported: unreported(m.state),
	}
	switch {
	case !m.state.Connected:
		c.Away, c.AwaySince = "it is not connected", rollout.AwaySince(m.object.Status.Conditions, now)
		if c.AwaySince != now {
			c.Away += " since " + c.AwaySince.UTC().Format(time.RFC3339)
		}
	case m.object.Spec.Agent.Profile == v1.ProfileReadOnly:
		c.Away = "its spec.agent.profile is ReadOnly, so it runs no plans"
	case m.state.Refuses == v1.ReasonAgentReadOnly:
		c.Away = "its agent has the ReadOnly profile and runs no plans; apply the manifest of the Full profile in the member"
	case m.state.Refuses == v1.ReasonIdentityMismatch:
		c.Away = "two clusters have its identity; see its condition Ready"
	case m.state.Refuses != "":
		c.Away = "its agent is too old to run plans; upgrade it"
	case !m.state.Silent.IsZero() && now.Sub(m.state.Silent) > silence:
		c.Away, c.AwaySince = "its agent has not said how its plans are since "+m.state.Silent.UTC().Format(time.RFC3339), m.state.Silent
	}
	if m.state.Unchecked && enforced(plan.Spec.Gates) {
		// The member's work continues, but it does not start.
		c.Hold = "AgentTooOld: its agent cannot check the gates of the plan; upgrade the agent"
	}
	if c.Away != "" && c.AwaySince.IsZero() && c.Claim != nil {
		c.AwaySince = c.Claim.Since // an agent that refuses the plan keeps refusing it until a user acts
	}
	return c
}

// unreported reports whether the hub does not know yet if a member has the plan.
func unreported(s MemberState) bool { return s.Status == nil && !s.Reported }

// readClaim returns a plan's claim on a Cluster, or nil if the plan has no claim. If a claim cannot be read, or if its
// times do not fit into a status, readClaim returns a claim without a revision. In that case, the hub does not know
// which work the member is doing, and the member can finish it before it starts the plan again.
func readClaim(cluster *v1.Cluster, plan string) *rollout.ClusterClaim {
	text := cluster.Annotations[v1.PlanLabel(plan)]
	if text == "" {
		return nil
	}
	claim := &rollout.ClusterClaim{}
	if err := untrusted.JSON([]byte(text), claim, untrusted.Small()); err != nil || !dated(&claim.Since) || !dated(claim.Complete) || !dated(claim.Failed) {
		return &rollout.ClusterClaim{Since: cluster.CreationTimestamp.Time}
	}
	return claim
}

func dated(t *time.Time) bool { return t == nil || protocol.Dated(*t) }
