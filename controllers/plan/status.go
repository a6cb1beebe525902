// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/status"
)

const (
	// listenAgain is the interval at which the controller checks again for missing reports. A report also triggers a
	// reconcile.
	listenAgain = time.Second
	// maxMessage is the maximum size of a member's message, in bytes.
	maxMessage = 512
	// statusPause is the minimum time between two writes of a status in which only counts have changed.
	statusPause = time.Second
	// reasonPause is the time during which no event is emitted if a plan returns to an earlier reason. Without this
	// limit, a member whose state keeps changing would cause many events.
	reasonPause = time.Minute
)

// conclusion is the result for a plan. It determines the plan's Complete and Ready conditions.
type conclusion struct {
	reason, message   string
	complete, stalled bool
	// ready is true if all reachable members are complete.
	ready bool
}

// writeStatus writes the status, and returns the time after which the status may change without an event.
func (r *Reconciler) writeStatus(ctx context.Context, s *scope) (ctrl.Result, error) {
	observed := s.plan.Status.ObservedGeneration == s.plan.Generation
	change := status.Change{Until: r.again(s), Rest: statusPause, Fill: func(update *status.Update) bool {
		v := s.conclusion()
		waves, gates := s.plan.Status.Waves, s.plan.Status.Gates
		s.fill(r.Deliveries.Outcomes(set.ID(set.Plan, s.plan.Name), s.delivered()))
		approved := rollout.RecordApprovals(s.plan.Status.Waves, waves, s.plan.Spec.Approvals, s.problem == nil, r.Now())
		for _, w := range approved {
			update.Event(status.WaveApproved(w))
		}
		overridden := s.gates(gates, metav1.NewTime(r.Now()))
		for _, o := range overridden {
			update.Event(status.Event{Warning: true, Reason: v1.ReasonCheckOverridden, Action: "Override",
				Message: fmt.Sprintf("%s overrides the check %s for revision %s: %s", o.OverriddenBy, o.Check, o.Revision,
					o.Reason)})
		}
		news := r.conclude(s.plan, s.release, v) && r.Now().Sub(r.written.Told(s.plan, v.reason)) >= reasonPause
		if news {
			update.Event(status.Event{Warning: v.warning(), Reason: v.reason, Action: "RollOut", Message: v.message, Rare: true})
		}
		return news || !observed || len(approved)+len(overridden) > 0
	}}
	if observed && r.unreported(s) {
		change.Delay = listenAgain // a write now would briefly remove reports that agents are about to send again
	}
	return r.written.Write(ctx, r.Output, s.plan, change)
}

// again returns the time after which the plan is reconciled without an event, or 0 if only an event triggers a
// reconcile.
func (r *Reconciler) again(s *scope) time.Duration {
	var next time.Time
	for _, at := range []time.Time{s.decision.Wait.Until, s.release.next} {
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	if slices.ContainsFunc(s.members, func(m observedMember) bool { return !m.state.Silent.IsZero() }) || r.unsettled(s) {
		soon := r.Now().Add(listenAgain)
		if next.IsZero() || soon.Before(next) {
			next = soon
		}
	}
	if next.IsZero() {
		return 0
	}
	return max(next.Sub(r.Now()), time.Millisecond)
}

// unreported reports whether any members that have the plan have not reported their progress yet.
func (r *Reconciler) unreported(s *scope) bool {
	for i, m := range s.members {
		if s.clusters[i].Claim == nil || m.state.Status != nil || m.state.Reported {
			continue
		}
		if m.state.Connected && s.clusters[i].Away == "" || !m.state.Connected && r.unsettled(s) {
			return true
		}
	}
	return false
}

func (s *scope) conclusion() conclusion {
	if s.problem != nil {
		return conclusion{reason: s.problem.Reason, message: s.problem.Message, stalled: s.problem.Stalled}
	}
	wait := s.decision.Wait
	v := conclusion{reason: wait.Reason, message: wait.Message}
	switch v.reason {
	case "": // a step could not be performed yet
		v.reason, v.message = v1.ReasonApplying, "it goes on"
	case v1.ReasonComplete, v1.ReasonNoNodes, v1.ReasonNoClusters:
		v.complete, v.ready = true, true
		if left := s.leftOut(); left > 0 {
			v.message += fmt.Sprintf("; nodes left out because they do not run Linux: %d", left)
		}
	case v1.ReasonMembersAway:
		v.ready = s.completeSomewhere() && !slices.ContainsFunc(s.clusters, func(c rollout.Cluster) bool { return c.Claim != nil && c.Claim.Failed != nil })
	case v1.ReasonNodeFailed, v1.ReasonTooManyFailures, v1.ReasonMemberAhead, v1.ReasonHubRestored, v1.ReasonInvalidPlan, v1.ReasonInvalidSelector:
		v.stalled = true
	}
	return v
}

// completeSomewhere reports whether any member has completed the current or an earlier revision of the plan. A plan
// that no member has completed is not Ready, even if all members are disconnected.
func (s *scope) completeSomewhere() bool {
	return slices.ContainsFunc(s.clusters, func(c rollout.Cluster) bool { return c.Claim != nil && c.Claim.Complete != nil })
}

func (v conclusion) warning() bool {
	return v.stalled || v.reason == v1.ReasonChannelFailed || v.reason == v1.ReasonMemberLost ||
		v.reason == v1.ReasonUpgradeUnsafe
}

// conclude writes the conditions, and reports whether the reason changed.
func (r *Reconciler) conclude(plan *v1.Plan, release resolved, v conclusion) bool {
	now := metav1.NewTime(r.Now())
	conditions := &plan.Status.Conditions
	set := func(kind string, is bool, reason, message string) {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: plan.Generation, LastTransitionTime: now}
		if is {
			c.Status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(conditions, c)
	}
	was := meta.FindStatusCondition(*conditions, v1.ConditionComplete)
	changed := was == nil || was.Reason != v.reason
	if secrets := []string{v1.ReasonSecretNotFound, v1.ReasonSecretRefused}; slices.Contains(secrets, v.reason) {
		set(v1.ConditionLatestResolved, false, v.reason, v.message)
	} else {
		set(v1.ConditionLatestResolved, release.version != "", release.reason, release.message)
	}
	set(v1.ConditionComplete, v.complete, v.reason, v.message)
	set(v1.ConditionReady, v.ready, v.reason, v.message)
	if v.stalled {
		set(v1.ConditionStalled, true, v.reason, v.message)
	} else {
		meta.RemoveStatusCondition(conditions, v1.ConditionStalled)
	}
	plan.Status.ObservedGeneration = plan.Generation
	return changed
}

// delivered returns the members that receive the plan.
func (s *scope) delivered() []types.NamespacedName {
	var names []types.NamespacedName
	for i := range s.clusters {
		if s.clusters[i].Claim != nil {
			names = append(names, client.ObjectKeyFromObject(s.members[i].object))
		}
	}
	return names
}

// fill sets all status fields except the conditions.
func (s *scope) fill(outcomes []delivery.Outcome) {
	st := &s.plan.Status
	st.LatestVersion, st.LatestHash, st.Revision = rollout.Version(s.release.version), "", ""
	if s.release.version != "" && s.problem == nil {
		st.LatestHash, st.Revision = s.fleet.Hash, s.fleet.Revision
	}
	st.Waves = nil
	var clusters [5]int
	if s.observed != nil {
		st.Waves = s.observed.Waves()
	}
	for _, w := range st.Waves {
		sum(&clusters, &w.Clusters)
	}
	var nodes [5]int
	st.Applying, st.Failures = nil, nil
	for i := range s.clusters {
		if said := s.current(i); said != nil {
			sum(&nodes, said.Nodes)
			s.nodes(s.clusters[i].Name, said)
		}
	}
	count := func(n [5]int) *v1.PlanCount {
		all := rollout.Count(n[0], n[1], n[2], n[3], n[4])
		return &all
	}
	st.Clusters, st.Nodes, st.Members = count(clusters), count(nodes), s.list(outcomes)
	st.Nodes.LeftOut = s.leftOut()
}

// current returns a member's status for the member's current revision, or nil if the member has not reported this
// status.
func (s *scope) current(i int) *v1.PlanStatus {
	if said := s.members[i].state.Status; s.clusters[i].Claim != nil && said != nil && said.Revision == s.fleet.Revision {
		return said
	}
	return nil
}

// leftOut returns the number of selected nodes that cannot run the pods of plans. It counts the nodes of all members.
func (s *scope) leftOut() int32 {
	count := 0
	for i := range s.clusters {
		if said := s.current(i); said != nil && said.Nodes != nil {
			count += int(said.Nodes.LeftOut)
		}
	}
	return int32(min(count, math.MaxInt32))
}

func sum(all *[5]int, c *v1.PlanCount) {
	if c == nil {
		return
	}
	for i, n := range []int32{c.Total, c.Complete, c.Applying, c.Failed, c.Held} {
		all[i] += int(n)
	}
}

// nodes adds a member's nodes on which the plan is in progress or has failed, up to the maximum number of nodes.
func (s *scope) nodes(cluster string, said *v1.PlanStatus) {
	st := &s.plan.Status
	for _, a := range said.Applying {
		if a.Cluster = cluster; len(st.Applying) < v1.MaxPlanNodes {
			st.Applying = append(st.Applying, a)
		}
	}
	for _, f := range said.Failures {
		if f.Cluster = cluster; len(st.Failures) < v1.MaxPlanNodes {
			st.Failures = append(st.Failures, f)
		}
	}
}

// list returns the members that have failed, then the members that refuse the plan, then the members that are applying
// it.
func (s *scope) list(outcomes []delivery.Outcome) []v1.PlanMember {
	var failed, refusing, working []v1.PlanMember
	for i := range s.clusters {
		c := &s.clusters[i]
		if c.Claim == nil || c.Claim.Complete != nil && c.Claim.Failed == nil && c.Claim.Revision == s.fleet.Revision {
			continue
		}
		at, _ := slices.BinarySearchFunc(outcomes, c.Name, func(o delivery.Outcome, name string) int { return cmp.Compare(o.Cluster, name) })
		m := describe(c, s.members[i].state.Status, s.fleet.Revision, outcomes[at])
		if s.observed != nil {
			m.Wave = s.observed.WaveOf(i)
		}
		switch {
		case c.Claim.Failed != nil:
			failed = append(failed, m)
		case m.Reason == v1.ReasonUpgradeUnsafe:
			refusing = append(refusing, m)
		default:
			working = append(working, m)
		}
	}
	all := slices.Concat(failed, refusing, working)
	return slices.Clip(all[:min(len(all), v1.MaxPlanMembers)])
}

// describe returns the status of a member that is applying the plan or has failed.
func describe(c *rollout.Cluster, said *v1.PlanStatus, revision string, o delivery.Outcome) v1.PlanMember {
	m := v1.PlanMember{Name: c.Name, Since: metav1.NewTime(c.Claim.Since), Reason: v1.ReasonDelivering, Message: "the plan is on its way"}
	if said != nil && said.Revision == revision {
		if said.Nodes != nil {
			m.Nodes = said.Nodes.Summary
		}
		if complete := meta.FindStatusCondition(said.Conditions, v1.ConditionComplete); complete != nil {
			m.Reason, m.Message = complete.Reason, complete.Message
		}
	}
	switch {
	case c.Away != "":
		m.Reason, m.Message = v1.ReasonMembersAway, c.Away
	case o.Stage == delivery.Failed || o.Stage == delivery.Refused:
		m.Reason, m.Message = o.Reason, delivery.Explain(o.Failures[0])
	}
	m.Message = protocol.Cut(m.Message, maxMessage)
	return m
}
