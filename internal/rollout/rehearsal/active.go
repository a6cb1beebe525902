// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rehearsal

import (
	"time"

	"github.com/drover-dev/drover/internal/rollout"
)

// active are the nodes of a member that have to be looked at for steps: those before have the plan, those after are yet to begin. So a play takes as long
// as it has steps, however many nodes there are.
type active struct {
	hash       string
	generation int64
	from, to   int
	// aside counts the others.
	aside rollout.Aside
	// member has the active nodes only.
	member rollout.Member
}

// narrow leaves nodes out that have the plan. For another plan than before it begins anew.
func (m *Member) narrow(plan *rollout.Plan, now time.Time) error {
	if a := m.active; a == nil || a.hash != plan.Hash || a.generation != plan.Generation {
		m.active = &active{hash: plan.Hash, generation: plan.Generation}
		for i := range m.Nodes {
			if err := m.put(i, plan, now); err != nil {
				return err
			}
		}
	}
	a := m.active
	for a.from < a.to {
		counts, idle, err := standing(&m.Nodes[a.from], plan, now)
		if err != nil || !idle || counts.Complete < counts.Total {
			return err
		}
		a.from++
		a.aside.Total += counts.Total
		a.aside.Complete += counts.Complete
	}
	return nil
}

// put counts a node that comes after the active ones, or makes it active with all before it.
func (m *Member) put(i int, plan *rollout.Plan, now time.Time) error {
	counts, idle, err := standing(&m.Nodes[i], plan, now)
	if !idle {
		m.active.to, m.active.aside = i+1, rollout.Aside{}
		return err
	}
	m.active.aside.Total += counts.Total
	m.active.aside.Complete += counts.Complete
	return err
}

// widen makes more nodes active where none of those that are could begin, and reports whether it did.
func (m *Member) widen(plan *rollout.Plan, now time.Time) (bool, error) {
	a := m.active
	for i := a.from; i < a.to; i++ {
		if counts, idle, err := standing(&m.Nodes[i], plan, now); err != nil || idle && counts.Complete < counts.Total {
			return false, err
		}
	}
	end := min(len(m.Nodes), a.to+max(1, a.to-a.from)) // twice as many, so that looking for more does not take long
	if a.to == end {
		return false, nil
	}
	for ; a.to < end; a.to++ {
		counts, _, err := standing(&m.Nodes[a.to], plan, now)
		if err != nil {
			return false, err
		}
		a.aside.Total -= counts.Total
		a.aside.Complete -= counts.Complete
	}
	return true, nil
}

// standing is what a node counts in a plan, and whether nothing is in its way and no plan at work on it.
func standing(n *rollout.Node, plan *rollout.Plan, now time.Time) (counts rollout.Aside, idle bool, err error) {
	progress, err := rollout.ProgressOf(rollout.Member{Nodes: []rollout.Node{*n}}, *plan, now)
	counts = rollout.Aside{Total: int(progress.Nodes.Total), Complete: int(progress.Nodes.Complete)}
	return counts, n.Ready && !n.Leaving && len(n.Claims) == 0, err
}

// seen is the member with the active nodes only.
func (m *Member) seen() *rollout.Member {
	a := m.active
	a.member = m.Member
	a.member.Nodes, a.member.Aside = m.Nodes[a.from:a.to], a.aside
	return &a.member
}
