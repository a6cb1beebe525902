// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Checks is the state of a plan's upgrade checks in a member.
type Checks struct {
	// Policy is what happens if there are findings. It is UpgradeChecksDisabled if the plan is not checked.
	Policy v1.UpgradeCheckPolicy
	// Hub reports whether the hub created the Plan, and therefore decides when the plan starts in the member.
	Hub bool
	// Revision is the plan's revision when the member was checked, At is the time when the checks ended, and Took is how
	// long they took. The revision includes the node selector, because the findings depend on it.
	Revision string
	At       time.Time
	Took     time.Duration
	// Refusal describes the findings that are not overridden. It is empty if there are none.
	Refusal string
	// Last is the Plan's last status.
	Last *v1.PlanStatus
}

const (
	// checkInterval is how long the outcome of the checks is used.
	checkInterval = time.Minute
	// checkShare limits the load of the checks of a member that refuses the plan. The pause between two checks is at least
	// this many times as long as a check.
	checkShare = 10
)

// Due returns the time at which a member that has to be checked is checked again.
func (c *Checks) Due(revision string) time.Time {
	if c.Revision != revision {
		return time.Time{}
	}
	if c.Refusal != "" {
		return c.At.Add(max(checkInterval, checkShare*c.Took))
	}
	return c.At.Add(checkInterval)
}

// Guard sets the reason why the plan must not start in the member.
//
// Once the member has refused a Plan of the hub, the plan starts only after the hub has delivered the Plan again. Until
// then, another member may be using the slot. Meanwhile, the hub delivers the Plan paused, and the agent keeps checking
// it.
func (p *Plan) Guard(c Checks, now time.Time) {
	made := c.Revision == p.Revision && (c.Refusal != "" || now.Before(c.Due(p.Revision)))
	started := ""
	if c.Last.Gates != nil {
		started = c.Last.Gates.Started
	}
	p.Refusal, p.probed, p.widened = nil, false, started != "" && started != p.Revision
	if started == p.Revision || c.Policy == v1.UpgradeChecksDisabled || c.Policy == v1.UpgradeChecksReport && made {
		return
	}
	last := meta.FindStatusCondition(c.Last.Conditions, v1.ConditionComplete)
	refused := last != nil && last.Reason == v1.ReasonUpgradeUnsafe && c.Last.LatestHash == p.Hash
	refusal := Wait{Reason: v1.ReasonUpgradeUnsafe, Message: c.Refusal, Unchecked: true}
	switch {
	case c.Policy == v1.UpgradeChecksReport:
		refusal.Reason, refusal.Message = v1.ReasonApplying, checking
	case c.Hub && refused && !p.Spec.Paused && c.Last.ObservedGeneration == p.Generation:
		refusal.Message, refusal.Unchecked = cmp.Or(c.Refusal, last.Message), false
	case !made && refused:
		refusal.Message = last.Message
	case !made:
		refusal.Reason, refusal.Message = v1.ReasonApplying, checking
	case c.Refusal == "":
		return
	}
	p.Refusal, p.probed = &refusal, c.Hub && refused
}

const checking = "the member is checked before the plan starts"

// refusal returns the reason why the plan must not start in the member. It returns nil if the plan has started.
func (v *view) refusal() *Wait {
	if v.begun && !v.plan.widened {
		return nil
	}
	return v.plan.Refusal
}

// claimed reports whether any node is in progress with the plan's current hash. Half of the member may then be
// upgraded, so the plan continues regardless of the checks. Nodes that have completed the hash do not count, because
// other nodes may have started another hash since then.
func (v *view) claimed() bool {
	return slices.ContainsFunc(v.Nodes, func(n Node) bool {
		c, ok := v.claim(&n)
		return ok && c.Hash == v.plan.Hash
	})
}

// Overridden returns the overrides of a revision that count in a Cluster. In a Plan of a member, the name of the
// Cluster is empty.
func Overridden(revision, cluster string, overrides []v1.Override) []v1.Override {
	var counted []v1.Override
	for _, o := range overrides {
		if revision != "" && o.Revision == revision && (len(o.Clusters) == 0 || slices.Contains(o.Clusters, cluster)) {
			counted = append(counted, o)
		}
	}
	return counted
}

// refuses reports whether a member's checks keep the current revision from starting there. The result is true until the
// member reports another reason, even if the member is disconnected, and for at least steadyTime.
func (f *Fleet) refuses(c *Cluster) bool {
	if !f.current(c) || c.Claim.Refused == nil {
		return false
	}
	if c.Status == nil || c.Status.Revision != f.plan.Revision || c.Status.Reason == v1.ReasonUpgradeUnsafe {
		return true
	}
	return !f.steady(c.Claim.Refused)
}

// steady reports whether at least steadyTime has passed since the given time. Otherwise, the next decision is due then.
func (f *Fleet) steady(since *time.Time) bool {
	end := since.Add(steadyTime)
	if f.now.Before(*since) || !f.now.Before(end) {
		return true
	}
	f.until = Sooner(f.until, end)
	return false
}

// startable reports whether a member has not started the current revision. This includes members that refused the
// revision and no longer do.
func (f *Fleet) startable(c *Cluster) bool {
	return !f.current(c) || c.Claim.Refused != nil && !f.refuses(c)
}

// busy reports whether nodes of a member are in progress with the current revision.
func (f *Fleet) busy(c *Cluster) bool {
	return c.Status != nil && c.Status.Revision == f.plan.Revision && c.Status.Busy
}

// awaitSafety returns the reason to wait for members that refuse the current revision. It names the first one.
func (f *Fleet) awaitSafety() Wait {
	var first *Cluster
	refusing := 0
	for i := range f.clusters {
		if c := &f.clusters[i]; f.of[i] >= 0 && f.refuses(c) {
			if refusing++; first == nil {
				first = c
			}
		}
	}
	if first == nil {
		return Wait{}
	}
	message := "its upgrade checks had findings"
	if first.Status != nil && first.Status.Reason == v1.ReasonUpgradeUnsafe && first.Status.Message != "" {
		message = first.Status.Message
	}
	lost := ""
	if first.Away != "" {
		lost = fmt.Sprintf(". To continue without this cluster, because %s, label it %s=%s", first.Away,
			v1.PlanLabel(f.plan.Name), v1.PlanDisabled)
	}
	return Wait{Reason: v1.ReasonUpgradeUnsafe, Message: fmt.Sprintf(
		"%s cannot be upgraded safely. Cluster %s: %s. \"kubectl drover plan check %s\" lists all findings. The plan starts "+
			"there when the checks pass, or after \"kubectl drover plan override %s\"%s",
		Clusters(refusing), first.Name, message, f.plan.Name, f.plan.Name, lost)}
}
