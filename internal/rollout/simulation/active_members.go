// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"cmp"
	"slices"

	"github.com/drover-dev/drover/internal/rollout"
)

// activeMembers holds the members of a fleet for which a simulation computes steps, like activeNodes in a member. It
// includes the next member to start, and each member in which the plan has started. A member becomes inactive when it
// is complete and has no pending events. Inactive members are only counted, so that the cost of a simulation grows with
// the number of steps rather than the number of members.
type activeMembers struct {
	// members contains the indexes of the active members in the list of all members. That list is sorted by name.
	members []int
	// waiting contains the indexes of the inactive members that can still start, in the order in which they start.
	waiting []int
	waves   []int             // the wave of each member; nil if all members are active
	view    []rollout.Cluster // clusters of the active members
}

// selectActive determines the active members again, because the caller may have changed the members.
func (p *Simulation) selectActive() error {
	p.activateAll()
	if p.fleet == nil {
		return nil
	}
	f, err := rollout.NewFleet(p.Clusters, *p.fleet, p.Now)
	if err != nil {
		return err
	}
	l := activeMembers{waves: make([]int, len(p.Clusters))}
	for i := range p.Clusters {
		wave, is := f.CountOf(i)
		l.waves[i] = wave
		switch {
		case p.Clusters[i].Claim != nil || p.delivered[i].generation > 0:
			l.members = append(l.members, i)
		case wave < 0:
		default:
			p.countInactive(wave, is)
			if is.Absent == 0 {
				l.waiting = append(l.waiting, i)
			}
		}
	}
	slices.SortStableFunc(l.waiting, func(a, b int) int { return cmp.Compare(l.waves[a], l.waves[b]) })
	p.active = l
	p.activateNext()
	return nil
}

func (p *Simulation) activateAll() {
	p.active = activeMembers{}
	for i := range p.Members {
		p.active.members = append(p.active.members, i)
	}
	if p.fleet != nil {
		p.fleet.Omitted = nil
	}
}

// activateNext activates the next member that may start.
func (p *Simulation) activateNext() {
	l := &p.active
	if len(l.waiting) == 0 {
		return
	}
	i := l.waiting[0]
	l.waiting = l.waiting[1:]
	p.fleet.Omitted[l.waves[i]].Total--
	at, _ := slices.BinarySearch(l.members, i)
	l.members = slices.Insert(l.members, at, i)
}

// deactivateComplete deactivates members that are complete and have no pending events. f is the fleet of active
// members.
func (p *Simulation) deactivateComplete(f *rollout.Fleet) {
	l := &p.active
	if l.waves == nil {
		return
	}
	kept := l.members[:0]
	for k, i := range l.members {
		c, r, m := &p.Clusters[i], &p.settled[i], p.Members[i]
		wave, is := f.CountOf(k)
		if is.Complete == 1 && c.Claim.Failed == nil && r.delivered == p.delivered[i] && r.wait.Until.IsZero() &&
			!m.changed && m.Due().IsZero() {
			p.countInactive(wave, is)
		} else {
			kept = append(kept, i)
		}
	}
	l.members = kept
}

func (p *Simulation) countInactive(wave int, is rollout.OmittedMembers) {
	for len(p.fleet.Omitted) <= wave {
		p.fleet.Omitted = append(p.fleet.Omitted, rollout.OmittedMembers{})
	}
	p.fleet.Omitted[wave].Add(is)
}

// inactiveAbsent reports whether any inactive member is unavailable or held. If so, the plan does not end as
// complete.
func (p *Simulation) inactiveAbsent() bool {
	return p.fleet != nil &&
		slices.ContainsFunc(p.fleet.Omitted, func(a rollout.OmittedMembers) bool { return a.Absent > 0 })
}

func (p *Simulation) activeClusters() []rollout.Cluster {
	l := &p.active
	l.view = l.view[:0]
	for _, i := range l.members {
		l.view = append(l.view, p.Clusters[i])
	}
	return l.view
}
