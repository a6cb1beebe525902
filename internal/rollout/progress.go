// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Progress is the progress of a plan in a member.
type Progress struct {
	Nodes v1.PlanCount
	// Begun reports whether any node is in progress with the plan's current hash.
	Begun bool
	// Applying and Failures each list at most v1.MaxPlanNodes nodes, in the order of the nodes. Failures do not
	// include logs.
	Applying []v1.ApplyingNode
	Failures []v1.NodeFailure
}

// ProgressOf returns the progress of a plan in a member. It returns an error if Next returns InvalidPlan for the
// plan.
func ProgressOf(m Member, p Plan, now time.Time) (Progress, error) {
	v, err := look(&m, p, now)
	if err != nil {
		return Progress{}, err
	}
	t := v.count()
	progress := Progress{Nodes: Count(t.total, t.complete, t.applying+t.waiting-t.former, t.failed, t.unready)}
	progress.Begun = v.begun
	progress.Nodes.LeftOut = narrow(t.foreign)
	for i := range m.Nodes {
		n := &m.Nodes[i]
		c, ok := v.claim(n)
		if !ok {
			continue
		}
		final := c.Failure != nil && c.Failure.Final
		if !final && len(progress.Applying) < v1.MaxPlanNodes {
			progress.Applying = append(progress.Applying, v1.ApplyingNode{
				Node: n.Name, Stage: v.stage(n, c), Since: metav1.NewTime(c.Since), Attempt: c.tried(),
			})
		}
		if c.Failure != nil && len(progress.Failures) < v1.MaxPlanNodes {
			progress.Failures = append(progress.Failures, v1.NodeFailure{
				Node: n.Name, Attempt: c.tried(), Final: final, At: metav1.NewTime(c.Failure.At), Reason: c.Failure.Reason, Message: c.Failure.Message,
			})
		}
	}
	return progress, nil
}

func (v *view) stage(n *Node, c Claim) v1.NodeStage {
	drained := v.Drains[n.Name]
	switch {
	case c.Done != nil:
		return v1.StageSettling
	case c.Failure != nil:
		return v1.StageWaiting
	case v.job(n, c, Upgrade) != nil:
		return v1.StageUpgrading
	case v.plan.Spec.Prepare != nil && !c.Prepared:
		return v1.StagePreparing
	case !c.Prepared && (v.plan.Spec.Cordon || v.plan.Spec.Drain != nil):
		return v1.StageCordoning
	case v.plan.Spec.Drain != nil && (!drained.Done || drained.Hash != c.Hash || drained.Attempt != c.Attempt):
		return v1.StageDraining
	}
	return v1.StageUpgrading
}

// Count returns a count with its summary filled in.
func Count(total, complete, applying, failed, held int) v1.PlanCount {
	return v1.PlanCount{
		Total: narrow(total), Complete: narrow(complete), Applying: narrow(applying), Failed: narrow(failed), Held: narrow(held),
		Summary: fmt.Sprintf("%d/%d", complete, total),
	}
}

func narrow(n int) int32 { return int32(min(n, math.MaxInt32)) }

// pending returns the reason why the pod of a node's Job has not started. It returns "" if the pod has started, or if
// the reason is unknown.
func (v *view) pending(n *Node, c Claim) string {
	for _, kind := range []JobKind{Upgrade, Prepare} {
		if job := v.job(n, c, kind); job != nil && job.State == Running {
			return job.Waiting
		}
	}
	return ""
}
