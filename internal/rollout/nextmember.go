// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// NextMember returns the next step of a plan in a fleet, or the reason to wait. The clusters must be sorted by name.
func NextMember(clusters []Cluster, plan FleetPlan, now time.Time) FleetDecision {
	f, err := NewFleet(clusters, plan, now)
	if err != nil {
		return FleetDecision{Wait: Wait{Reason: v1.ReasonInvalidSelector, Message: err.Error() + ": change the plan"}}
	}
	return f.Next()
}

// Next returns the next step, or the reason to wait.
func (f *Fleet) Next() FleetDecision {
	decision := f.next()
	var ask []string
	for supposed := f; ; decision = supposed.next() {
		i := slices.IndexFunc(supposed.clusters, func(c Cluster) bool { return decision.begins(c.Name) })
		if i < 0 || !supposed.clusters[i].Ask {
			break
		}
		clusters := slices.Clone(supposed.clusters)
		clusters[i].Claim, clusters[i].Unreported = decision.Step.Claim, false
		next, err := NewFleet(clusters, f.plan, f.now)
		if err != nil {
			break // NewFleet would have failed for f as well
		}
		ask, supposed = append(ask, decision.Step.Cluster), next
	}
	if decision.Ask = ask; len(ask) > 0 && decision.Step == nil {
		decision.Wait = Wait{Reason: v1.ReasonApplying, Message: Clusters(len(ask)) + " asked whether they take part"}
	}
	return decision
}

// begins reports whether the decision is to start the plan in a cluster.
func (d FleetDecision) begins(cluster string) bool {
	return d.Step != nil && d.Step.Verb == VerbBegin && d.Step.Cluster == cluster
}

// next returns the next step, assuming that no member has to send a report first.
func (f *Fleet) next() FleetDecision {
	for i := range f.clusters {
		if step := f.record(&f.clusters[i]); step != nil {
			return FleetDecision{Step: step}
		}
	}
	begins, why := f.candidate()
	if why.Reason == "" && begins != nil {
		return FleetDecision{Step: &ClusterStep{Verb: VerbBegin, Cluster: begins.Name,
			Claim: &ClusterClaim{Revision: f.plan.Revision, Since: f.now}}}
	}
	if why.Reason == "" {
		why = f.remainder()
	}
	why.Until = f.until
	return FleetDecision{Wait: why}
}

// A member counts as failed, or as refusing the plan, for at least steadyTime, regardless of its reports. As a result,
// an agent whose reports alternate causes at most two writes per minute.
const steadyTime = time.Minute

// record returns the step that writes a member's progress into its claim. It returns nil if there is nothing to
// write.
func (f *Fleet) record(c *Cluster) *ClusterStep {
	if c.Claim == nil {
		return nil
	}
	if !f.counts(c) {
		if f.idle(c) || c.Claim.Complete != nil && c.Away != "" {
			return &ClusterStep{Verb: VerbRelease, Cluster: c.Name}
		}
		return nil
	}
	if f.ahead(c) {
		return &ClusterStep{Verb: VerbDoubt, Cluster: c.Name,
			Claim: &ClusterClaim{Since: f.now, Ahead: &Ahead{Found: c.Status.Revision, Plan: f.plan.Revision}}}
	}
	if !f.current(c) && c.Claim.Complete == nil && c.Claim.Revision != "" && f.idle(c) {
		// Write the claim without a revision. If the claim kept its revision and the plan were changed back, the plan would
		// be in progress in the member without a slot.
		return &ClusterStep{Verb: VerbYield, Cluster: c.Name, Claim: &ClusterClaim{Since: c.Claim.Since}}
	}
	if !f.current(c) || c.Away != "" || c.Status == nil || c.Status.Revision != f.plan.Revision {
		return nil
	}
	next := *c.Claim
	step := &ClusterStep{Cluster: c.Name, Claim: &next}
	switch reason := c.Status.Reason; {
	case (reason == v1.ReasonComplete || reason == v1.ReasonNoNodes) && next.Complete == nil:
		step.Verb, step.Label = VerbComplete, f.plan.Hash
		next.Complete, next.Failed, next.Refused = &f.now, nil, nil
	case (reason == v1.ReasonComplete || reason == v1.ReasonNoNodes) && next.Failed != nil:
		step.Verb = VerbRecover
		next.Failed = nil
	case reason == v1.ReasonNodeFailed && next.Failed == nil && !f.plan.Pace.Paused:
		step.Verb = VerbFail
		next.Failed, next.Refused = &f.now, nil
	case reason == v1.ReasonUpgradeUnsafe && next.Refused == nil && !c.Status.Busy:
		step.Verb = VerbRefuse
		next.Complete, next.Failed, next.Refused = nil, nil, &f.now
	case next.Failed != nil && f.plan.Pace.Paused && reason == v1.ReasonPaused:
		// A user pauses the plan and resumes it to try again. No member fails while the plan is paused, so this
		// causes at most one write.
		step.Verb = VerbRecover
		next.Failed = nil
		return step
	case next.Failed != nil && reason == v1.ReasonApplying:
		step.Verb = VerbRecover
		next.Failed = nil
	default:
		return nil
	}
	for _, since := range []*time.Time{c.Claim.Failed, c.Claim.Refused} {
		if since != nil && !f.steady(since) {
			return nil
		}
	}
	return step
}

// candidate returns the next member to start, or the reason why no member may start.
func (f *Fleet) candidate() (*Cluster, Wait) {
	if f.plan.Pace.Paused {
		return nil, Wait{Reason: v1.ReasonPaused, Message: "the plan is paused: set spec.paused to false to continue"}
	}
	for _, why := range []Wait{f.halted(), f.asked()} {
		if why.Reason != "" {
			return nil, why
		}
	}
	if f.stopped {
		return nil, Wait{Reason: v1.ReasonTooManyFailures, Message: fmt.Sprintf(
			"%s failed and rollout.maxFailedClusters allows %d, so no other begins. See status.failures for the cause. "+
				"Repair it and run \"kubectl drover plan retry %s\", or change the plan, or raise maxFailedClusters to continue "+
				"without the failed clusters", Clusters(f.failed), f.plan.Pace.MaxFailed, f.plan.Name)}
	}
	open, why := f.openWaves()
	var best *Cluster
	at := open
	for i := range f.clusters {
		c := &f.clusters[i]
		if f.of[i] < 0 || f.of[i] >= at || !f.startable(c) || c.Away != "" || f.held(c) != "" {
			continue
		}
		best, at = c, f.of[i]
	}
	if best == nil {
		return nil, why
	}
	window, err := NewWindow(f.plan.Pace.Window)
	if err != nil {
		return nil, Wait{Reason: v1.ReasonInvalidPlan, Message: err.Error() + ": change the plan"}
	}
	if is, until := window.Open(f.now); !is {
		f.until = Sooner(f.until, until)
		return nil, f.unless(Wait{Reason: v1.ReasonAwaitingWindow, Message: opens("the window", until)})
	}
	if f.slots >= max(f.plan.Pace.MaxConcurrent, 1) {
		if f.slotUnapproved() {
			return nil, f.awaitApproval()
		}
		return nil, f.working()
	}
	return best, Wait{}
}

// openWaves returns the number of waves that may start, counted from the first, and the reason why the next wave must
// wait.
func (f *Fleet) openWaves() (int, Wait) {
	refused := false // whether members of this wave or an earlier one refuse the plan
	for i, w := range f.waves {
		if i == f.gate {
			return i, f.awaitApproval()
		}
		if refused = refused || w.refused > 0; i < f.opened {
			continue
		}
		begun := w.complete + w.failed + w.active
		switch end := w.last.Add(w.soak); {
		case w.total == 0:
		case w.active > 0:
			return i + 1, f.working()
		case begun+w.absent < w.total || refused: // some members can start now, or when their checks pass
			return i + 1, Wait{}
		case w.complete == 0:
			return i + 1, Wait{} // no member has proved yet that the plan works
		case f.now.Before(end):
			f.until = Sooner(f.until, end)
			return i + 1, Wait{Reason: v1.ReasonSoaking,
				Message: fmt.Sprintf("wave %s is complete and soaks until %s", w.name, end.UTC().Format(time.RFC3339))}
		}
	}
	return len(f.waves), Wait{}
}

// unless returns the reason Applying if the plan is in progress in any member, and w otherwise.
func (f *Fleet) unless(w Wait) Wait {
	if f.slots > 0 {
		return f.working()
	}
	return w
}

// remainder returns the reason to wait when no member can start.
func (f *Fleet) remainder() Wait {
	var total, complete, failed, held, away int
	var holds, is string
	for i := range f.clusters {
		c := &f.clusters[i]
		if f.of[i] < 0 {
			continue
		}
		total++
		switch {
		case f.refuses(c):
		case f.current(c) && c.Claim.Failed != nil:
			failed++
		case f.current(c) && c.Claim.Complete != nil:
			complete++
		case !f.startable(c):
		case c.Away != "":
			away++
			is = cmp.Or(is, fmt.Sprintf("cluster %s: %s", c.Name, c.Away))
		case f.held(c) != "":
			held++
			holds = cmp.Or(holds, f.held(c))
		}
	}
	switch {
	case total == 0 && f.slots == 0:
		return Wait{Reason: v1.ReasonNoClusters, Message: "no cluster is selected"}
	case f.slots > 0:
		return f.working()
	case complete == total:
		return f.finished()
	}
	if refusal := f.awaitSafety(); refusal.Reason != "" {
		return refusal
	}
	switch {
	case away > 0:
		return Wait{Reason: v1.ReasonMembersAway,
			Message: fmt.Sprintf("%s left that cannot be reached or cannot take part: %s", Clusters(away), is)}
	case held > 0:
		return Wait{Reason: v1.ReasonHeld, Message: fmt.Sprintf("%s left on which plans are held: %s", Clusters(held), holds)}
	}
	return Wait{Reason: v1.ReasonNodeFailed,
		Message: fmt.Sprintf("%d of %s complete, %d failed: see status.failures, repair the cause and run "+
			"\"kubectl drover plan retry %s\", or change the plan", complete, Clusters(total), failed, f.plan.Name)}
}

// finished returns the reason to wait when no work is left. If the plan selects no node in any member, the reason says
// so, because the selector is probably wrong.
func (f *Fleet) finished() Wait {
	total := 0
	nowhere := true
	for i := range f.clusters {
		if f.of[i] < 0 {
			continue
		}
		total++
		s := f.clusters[i].Status
		nowhere = nowhere && s != nil && s.Revision == f.plan.Revision && s.Reason == v1.ReasonNoNodes
	}
	if nowhere {
		return Wait{Reason: v1.ReasonNoNodes,
			Message: fmt.Sprintf("no node is selected in %s: see nodeSelector", Clusters(total))}
	}
	return Wait{Reason: v1.ReasonComplete, Message: Clusters(total) + " complete"}
}

// Waves returns the progress of each wave. It omits the last wave if that wave is empty and the plan does not name
// it.
func (f *Fleet) Waves() []v1.WaveStatus {
	var all []v1.WaveStatus
	for i, w := range f.waves {
		if w.total == 0 && i == len(f.waves)-1 {
			continue
		}
		s := v1.WaveStatus{Name: w.name, Clusters: Count(w.total, w.complete, w.active, w.failed, w.absent+w.refused)}
		if w.complete > 0 && w.complete+w.failed+w.absent == w.total && w.soak > 0 {
			last, end := metav1.NewTime(w.last), metav1.NewTime(w.last.Add(w.soak))
			s.CompletionTime, s.SoakUntil = &last, &end
		}
		s.Approval = f.approvalOf(i)
		all = append(all, s)
	}
	return all
}

// WaveOf returns the name of a member's wave. i is the member's index in the slice that was passed to NewFleet. The
// name is empty if the plan does not select the member.
func (f *Fleet) WaveOf(i int) string {
	if f.of[i] < 0 {
		return ""
	}
	return f.waves[f.of[i]].name
}

// Clusters returns the number of clusters as text, such as "1 cluster" or "3 clusters".
func Clusters(n int) string {
	if n == 1 {
		return "1 cluster"
	}
	return fmt.Sprintf("%d clusters", n)
}
