// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"time"

	"github.com/drover-dev/drover/internal/rollout"
)

// activeNodes holds the nodes of a member for which steps are computed. Nodes before the active ones have completed the
// plan, and nodes after them have not started. As a result, the cost of a simulation grows with the number of steps
// rather than the number of nodes.
type activeNodes struct {
	hash       string
	generation int64
	from, to   int
	// omitted counts the nodes that are not active.
	omitted rollout.Omitted
	// member contains only the active nodes.
	member rollout.Member
}

// deactivateComplete deactivates nodes that have completed the plan. If the plan has changed, it first activates all
// nodes again.
func (m *Member) deactivateComplete(plan *rollout.Plan, now time.Time) error {
	if a := m.active; a == nil || a.hash != plan.Hash || a.generation != plan.Generation {
		m.active = &activeNodes{hash: plan.Hash, generation: plan.Generation}
		for i := range m.Nodes {
			if err := m.classify(i, plan, now); err != nil {
				return err
			}
		}
	}
	a := m.active
	for a.from < a.to {
		counts, idle, err := countNode(&m.Nodes[a.from], plan, now)
		if err != nil || !idle || counts.Complete < counts.Total {
			return err
		}
		a.from++
		a.omitted.Total += counts.Total
		a.omitted.Complete += counts.Complete
	}
	return nil
}

// classify counts a node that follows the active nodes. If the node is not idle, classify activates it and all nodes
// before it instead.
func (m *Member) classify(i int, plan *rollout.Plan, now time.Time) error {
	counts, idle, err := countNode(&m.Nodes[i], plan, now)
	if !idle {
		m.active.to, m.active.omitted = i+1, rollout.Omitted{}
		return err
	}
	m.active.omitted.Total += counts.Total
	m.active.omitted.Complete += counts.Complete
	return err
}

// activateMore activates more nodes if none of the active nodes could start, and reports whether it activated any.
func (m *Member) activateMore(plan *rollout.Plan, now time.Time) (bool, error) {
	a := m.active
	for i := a.from; i < a.to; i++ {
		if counts, idle, err := countNode(&m.Nodes[i], plan, now); err != nil || idle && counts.Complete < counts.Total {
			return false, err
		}
	}
	end := min(len(m.Nodes), a.to+max(1, a.to-a.from)) // twice as many nodes each time, to keep the search short
	if a.to == end {
		return false, nil
	}
	for ; a.to < end; a.to++ {
		counts, _, err := countNode(&m.Nodes[a.to], plan, now)
		if err != nil {
			return false, err
		}
		a.omitted.Total -= counts.Total
		a.omitted.Complete -= counts.Complete
	}
	return true, nil
}

// countNode returns the counts for a single node in a plan. A node is idle if it is ready, is not being deleted, and
// has no claim.
func countNode(n *rollout.Node, plan *rollout.Plan, now time.Time) (counts rollout.Omitted, idle bool, err error) {
	progress, err := rollout.ProgressOf(rollout.Member{Nodes: []rollout.Node{*n}}, *plan, now)
	counts = rollout.Omitted{Total: int(progress.Nodes.Total), Complete: int(progress.Nodes.Complete)}
	return counts, n.Ready && !n.Leaving && len(n.Claims) == 0, err
}

// activeView returns a view of the member that contains only the active nodes.
func (m *Member) activeView() *rollout.Member {
	a := m.active
	a.member = m.Member
	a.member.Nodes, a.member.Omitted = m.Nodes[a.from:a.to], a.omitted
	return &a.member
}
