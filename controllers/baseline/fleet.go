// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"fmt"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/internal/set"
)

// observed is what the hub knows about a member.
type observed struct {
	name   string
	labels map[string]string
	// known is true if the agent has reported its sets, and available is true if it accepts a Baseline now.
	known, available bool
	// revision is the revision that the agent reports. It is empty if the member has none. phase is its progress.
	revision string
	phase    protocol.SetPhase
}

// settleAgain is the time after which a rollout that may not begin looks again. No event says that the hub has settled.
const settleAgain = 5 * time.Second

// earlier is the revision of a member that has a set whose revision its agent does not report yet.
const earlier = "earlier"

func observe(o delivery.Outcome, labels map[string]string, current *set.Set) observed {
	m := observed{name: o.Cluster, labels: labels, known: o.Known, available: o.Available}
	switch said := o.Reported; {
	case said == nil:
	case said.Digest == current.Digest:
		m.revision, m.phase = current.Baseline.Revision, said.Phase
	case said.Baseline != nil:
		m.revision, m.phase = said.Baseline.Revision, said.Phase
	default:
		m.revision = earlier
	}
	return m
}

// stage is everything else that the next step of a rollout depends on.
type stage struct {
	// current is the revision that is rolled out. complete is the last revision that was complete and whose objects are
	// known, or empty.
	current, complete string
	pace              rollout.Pace
	// waves are the waves in the status, if the status is about the current revision.
	waves []v1.WaveStatus
	// turns contains the members in which the revision has begun, but whose agents may not have reported it yet.
	turns map[string]bool
	// begins is true if members may begin.
	begins bool
}

func paceOf(spec *v1.BaselinePace) rollout.Pace {
	var plan v1.PlanSpec
	plan.Paused, plan.Rollout = spec.Paused, spec.Rollout
	return rollout.PaceOf(&plan)
}

// give is the content that a member gets. The zero value means that it keeps the objects that it has.
type give int

const (
	giveCurrent give = iota + 1
	giveComplete
)

// progress is the state of a rollout after the members that can begin have begun.
type progress struct {
	give  map[string]give
	turns map[string]bool
	waves []v1.WaveStatus
	wait  rollout.Wait
	// complete is true if the revision is applied and healthy in all members that can be reached.
	complete bool
	failed   int
	allowed  int
}

// decideRollout decides what each member gets. The members must be sorted by name. A member that has no revision gets
// the last complete one at once, and then takes part like the others.
func decideRollout(members []observed, s stage, now time.Time) (*progress, error) {
	p := &progress{give: map[string]give{}, turns: map[string]bool{}, allowed: s.pace.MaxFailed}
	var fleet []observed
	for _, m := range members {
		if m.known && m.revision == "" && !s.turns[m.name] && s.complete != "" {
			if p.give[m.name] = giveComplete; s.complete == s.current {
				p.give[m.name] = giveCurrent
			}
			continue
		}
		s.begins = s.begins && (m.known || !m.available)
		fleet = append(fleet, m)
	}
	f, clusters, err := s.fleet(fleet, now)
	if err != nil {
		return nil, err
	}
	p.wait = rollout.Wait{
		Reason: v1.ReasonApplying, Message: "The hub waits for the reports of agents", Until: now.Add(settleAgain),
	}
	for s.begins {
		next := f.Next()
		if next.Step == nil || next.Step.Verb != rollout.VerbBegin {
			p.wait = next.Wait
			break
		}
		f.Begin(next.Step)
	}
	p.complete = true
	done := false
	for i, c := range clusters {
		if c.Claim == nil || c.Claim.Revision != s.current {
			p.complete = p.complete && c.Away != ""
			continue
		}
		p.give[c.Name] = giveCurrent
		if fleet[i].revision != s.current {
			p.turns[c.Name] = true
		}
		if c.Claim.Failed != nil {
			p.failed++
		}
		p.complete, done = p.complete && c.Claim.Complete != nil, done || c.Claim.Complete != nil
	}
	p.complete = p.complete && done
	p.waves = f.Waves()
	return p, nil
}

// fleet returns the members in the form that package rollout uses. The time when a wave was complete follows from the
// status, so that a new leader knows when the wave has soaked.
func (s stage) fleet(members []observed, now time.Time) (*rollout.Fleet, []rollout.Cluster, error) {
	clusters := make([]rollout.Cluster, len(members))
	for i, m := range members {
		clusters[i] = rollout.Cluster{Name: m.name, Labels: m.labels, Selected: true, Claim: s.claim(m, now)}
		if !m.available {
			clusters[i].Away = "it is not connected, or does not accept Baselines"
		}
	}
	plan := rollout.FleetPlan{Pace: s.pace, Revision: s.current}
	f, err := rollout.NewFleet(clusters, plan, now)
	if err != nil {
		return nil, nil, err
	}
	soaks, ends := map[string]time.Duration{}, map[string]time.Time{}
	for _, w := range s.pace.Waves {
		soaks[w.Name] = w.Soak
	}
	for _, w := range s.waves {
		if w.SoakUntil != nil {
			ends[w.Name] = w.SoakUntil.Add(-soaks[w.Name])
		}
	}
	for i := range clusters {
		if end, is := ends[f.WaveOf(i)]; is && clusters[i].Claim != nil && clusters[i].Claim.Complete != nil {
			clusters[i].Claim.Complete = &end
		}
	}
	f, err = rollout.NewFleet(clusters, plan, now)
	return f, clusters, err
}

// claim returns the progress of a member. A member with an earlier revision takes no slot, because applying objects can
// be interrupted at any time.
func (s stage) claim(m observed, now time.Time) *rollout.ClusterClaim {
	switch {
	case m.revision == s.current:
		claim := &rollout.ClusterClaim{Revision: s.current, Since: now}
		switch m.phase {
		case protocol.SetApplied, protocol.SetDrifted:
			claim.Complete = &now
		case protocol.SetUnhealthy, protocol.SetForbidden, protocol.SetConflict, protocol.SetFighting,
			protocol.SetRoleMissing, protocol.SetFailed:
			claim.Failed = &now
		}
		return claim
	case s.turns[m.name]:
		return &rollout.ClusterClaim{Revision: s.current, Since: now}
	case m.revision != "":
		return &rollout.ClusterClaim{Revision: m.revision, Complete: &time.Time{}}
	}
	return nil
}

// waiting replaces the outcomes of members that wait for their turn. Their agents have reported, so nothing is unknown.
func (p *progress) waiting(outcomes []delivery.Outcome) []delivery.Outcome {
	if p == nil {
		return outcomes
	}
	for i := range outcomes {
		o := &outcomes[i]
		switch {
		case p.give[o.Cluster] == giveCurrent:
		case p.give[o.Cluster] == giveComplete && o.Stage == delivery.Applied:
			o.Stage = delivery.Pending
		case o.Stage == delivery.Unreported && o.Known && o.Available:
			o.Stage = delivery.Pending
		case o.Stage == delivery.Unreported && o.Known:
			o.Stage = delivery.Away
		}
	}
	return outcomes
}

// explain adds the reason why no other member begins to a summary.
func (p *progress) explain(summary *delivery.Summary) {
	if p == nil || summary.Refused || summary.Ready {
		return
	}
	switch p.wait.Reason {
	case v1.ReasonTooManyFailures:
		summary.Message = fmt.Sprintf("%s failed and rollout.maxFailedClusters allows %d, so no other begins: repair the "+
			"cause, change the Baseline, or raise maxFailedClusters. %s", rollout.Clusters(p.failed), p.allowed, summary.Message)
		summary.Reason, summary.Stalled = p.wait.Reason, true
	case v1.ReasonPaused:
		if summary.Reason == v1.ReasonDelivering || summary.Reason == v1.ReasonApplying {
			summary.Reason = p.wait.Reason
			summary.Message = summary.Clusters.Summary + " clusters have it; it is paused: set spec.paused to false to continue"
		}
	case v1.ReasonSoaking:
		if summary.Reason == v1.ReasonDelivering || summary.Reason == v1.ReasonApplying {
			summary.Reason, summary.Message = p.wait.Reason, p.wait.Message
		}
	}
}
