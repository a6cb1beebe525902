// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/internal/set"
)

// observed holds the facts about a member that the hub knows.
type observed struct {
	name   string
	labels map[string]string
	// known is true if the agent has reported its sets, and available is true if it accepts a Baseline now.
	known, available bool
	// away is the time when the member became unavailable. It is zero if the member is available.
	away time.Time
	// refuses is true if nothing is delivered to the member, for example because its agent is too old. rejects is true if
	// the current revision could not be delivered to it.
	refuses, rejects bool
	// revision is the revision that the agent reports. It is empty if the member has none. phase is the member's progress
	// with this revision.
	revision string
	phase    protocol.SetPhase
}

// settleAgain is the delay before the controller checks again whether a rollout may begin. No event reports that the
// hub has settled.
const settleAgain = 5 * time.Second

// earlier stands for the unknown revision of a member whose agent has a set but does not report the set's revision yet.
const earlier = "earlier"

func observe(o delivery.Outcome, cluster *v1.Cluster, current *set.Set, now time.Time) observed {
	m := observed{
		name: o.Cluster, labels: cluster.Labels, known: o.Known, available: o.Available, refuses: o.Stage == delivery.Refused,
	}
	if _, holds := m.labels[v1.LabelPlansHold]; holds { // the label holds back only Plans
		m.labels = maps.Clone(m.labels)
		delete(m.labels, v1.LabelPlansHold)
	}
	if !m.available {
		m.away = rollout.AwaySince(cluster.Status.Conditions, now)
		if o.Since.After(m.away) { // the condition can be older than the member's turn
			m.away = o.Since
		}
	}
	switch said := o.Reported; {
	case said == nil:
	case said.Digest == current.Digest:
		m.revision, m.phase = current.Baseline.Revision, said.Phase
	case said.Baseline != nil:
		m.revision, m.phase = said.Baseline.Revision, said.Phase
	default:
		m.revision = earlier
	}
	m.rejects = o.Stage == delivery.Failed && m.revision != current.Baseline.Revision
	return m
}

// stage holds everything else that the next step of a rollout depends on.
type stage struct {
	// current is the revision that is being rolled out. complete is the last complete revision, or empty if there is none
	// or if its objects are not known.
	current, complete string
	pace              rollout.Pace
	// waves holds the waves after the last decision for the current revision.
	waves []v1.WaveStatus
	// turns contains the members in which the revision has begun, but whose agents may not have reported it yet. busy
	// contains the connected members that have been applying a revision, and when this manager first saw them do so.
	turns map[string]bool
	busy  map[string]time.Time
	// patience is how long a connected member may apply a revision before it counts as failed, or 0 for no limit.
	patience time.Duration
	// begins is true if more members may begin.
	begins bool
	// name is the name of the Baseline. toApprove is the revision that approvals must name.
	name, toApprove string
	approvals       []v1.Approval
}

// give selects the content that a member gets. The zero value means that the member keeps its current objects.
type give int

const (
	giveCurrent give = iota + 1
	giveComplete
)

// progress is the state of a rollout once every member that can begin has begun.
type progress struct {
	give  map[string]give
	turns map[string]bool
	busy  map[string]time.Time
	waves []v1.WaveStatus
	wait  rollout.Wait
	// complete is true if the revision is applied and healthy in all members that can be reached, apart from the number
	// that may fail.
	complete bool
	// working, failed and waiting count members. allowed is the number of members that may fail. why explains the failure
	// of the first member that does not report a failure itself.
	working, failed, waiting, allowed int
	why                               string
}

// decideRollout decides what each member gets. The members must be sorted by name. A member without a revision
// immediately gets the last complete revision. After that, it takes part in the rollout like any other member.
func decideRollout(members []observed, s stage, now time.Time) (*progress, error) {
	p := &progress{
		give: map[string]give{}, turns: map[string]bool{}, busy: map[string]time.Time{}, allowed: s.pace.MaxFailed,
	}
	var fleet []observed
	for _, m := range members {
		if s.lacks(m) {
			if p.give[m.name] = giveComplete; s.complete == s.current {
				p.give[m.name] = giveCurrent
			}
			continue
		}
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
	complete := 0
	for i, c := range clusters {
		m := &fleet[i]
		if c.Claim == nil || c.Claim.Revision != s.current {
			if c.Away == "" {
				p.waiting++
			}
			continue
		}
		p.give[c.Name] = giveCurrent
		if m.revision != s.current {
			p.turns[c.Name] = true
		}
		if since := s.inProgress(m, now); !since.IsZero() {
			p.busy[c.Name] = since
		}
		switch {
		case c.Claim.Complete != nil:
			complete++
		case c.Claim.Failed == nil:
			p.working++
			p.wait.Until = rollout.Sooner(p.wait.Until, s.deadline(m, now))
		default:
			p.failed++
			p.why = cmp.Or(p.why, s.whyLate(m, now))
		}
	}
	p.complete = complete > 0 && p.working+p.waiting == 0 && p.failed <= p.allowed
	p.waves = f.Waves()
	return p, nil
}

// inProgress returns the time since which a connected member that has begun has reported no result. It returns zero for
// all other members.
func (s stage) inProgress(m *observed, now time.Time) time.Time {
	reported := m.revision == s.current
	if !m.available || m.rejects || reported && (applied(m.phase) || slices.Contains(failing(), m.phase)) {
		return time.Time{}
	}
	if since, is := s.busy[m.name]; is {
		return since
	}
	return now
}

// deadline returns the time when a member that is applying a revision counts as failed, or zero if there is none. The
// revision may have disconnected the member, for example by breaking its CNI plugin. Such a revision must not spread to
// an unlimited number of members. A connected member must not delay the others by never reporting a result.
func (s stage) deadline(m *observed, now time.Time) time.Time {
	if since := s.inProgress(m, now); !since.IsZero() && s.patience > 0 {
		return since.Add(s.patience)
	}
	if !m.available && !m.away.IsZero() {
		return m.away.Add(rollout.LostTime)
	}
	return time.Time{}
}

// late reports whether the deadline of a member has passed.
func (s stage) late(m *observed, now time.Time) bool {
	deadline := s.deadline(m, now)
	return !deadline.IsZero() && !now.Before(deadline)
}

// whyLate explains why a member counts as failed, or returns "" if its deadline has not passed.
func (s stage) whyLate(m *observed, now time.Time) string {
	switch {
	case !s.late(m, now):
		return ""
	case m.available:
		return fmt.Sprintf("Cluster %s has been in progress for more than %s", m.name, s.patience)
	}
	return fmt.Sprintf("Cluster %s was disconnected while it was in progress", m.name)
}

// lacks reports whether a member has no revision and therefore gets the last complete revision.
func (s stage) lacks(m observed) bool {
	return m.known && m.revision == "" && !s.turns[m.name] && s.complete != ""
}

// fleet returns the members in the form that package rollout uses. The completion time of a wave comes from the status,
// so that a new leader knows when the wave has soaked.
func (s stage) fleet(members []observed, now time.Time) (*rollout.Fleet, []rollout.Cluster, error) {
	clusters := make([]rollout.Cluster, len(members))
	for i, m := range members {
		clusters[i] = rollout.Cluster{Name: m.name, Labels: m.labels, Selected: true, Claim: s.claim(&m, now)}
		if !m.available {
			clusters[i].Away = "it is not connected, or does not accept Baselines"
		}
	}
	plan := rollout.FleetPlan{Baseline: s.name, Pace: s.pace, Revision: s.current,
		ApprovalRevision: s.toApprove, Approvals: s.approvals}
	f, err := rollout.NewFleet(clusters, plan, now)
	if err != nil {
		return nil, nil, err
	}
	ends := map[string]time.Time{}
	for _, w := range s.waves {
		if w.CompletionTime != nil {
			ends[w.Name] = w.CompletionTime.Time
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

// claim returns the progress of a member. A member with an earlier revision does not occupy a slot, because applying
// objects can be interrupted at any time.
func (s stage) claim(m *observed, now time.Time) *rollout.ClusterClaim {
	reported := m.revision == s.current
	switch {
	case m.refuses:
		return nil
	case reported || s.turns[m.name]:
		claim := &rollout.ClusterClaim{Revision: s.current, Since: now}
		switch {
		case reported && applied(m.phase):
			end := now.Truncate(time.Second) // as in the status
			claim.Complete = &end
		case reported && slices.Contains(failing(), m.phase), m.rejects, s.late(m, now):
			claim.Failed = &now
		}
		return claim
	case m.revision != "":
		return &rollout.ClusterClaim{Revision: m.revision, Complete: &time.Time{}}
	}
	return nil
}

func applied(phase protocol.SetPhase) bool {
	return phase == protocol.SetApplied || phase == protocol.SetDrifted
}

// failing returns the phases in which a member counts as failed.
func failing() []protocol.SetPhase {
	return []protocol.SetPhase{protocol.SetUnhealthy, protocol.SetForbidden, protocol.SetConflict, protocol.SetFighting,
		protocol.SetRoleMissing, protocol.SetFailed}
}

// replace marks members as Pending while they wait for their turn. The agents of these members have reported, so their
// state is known.
func (p *progress) replace(outcomes []delivery.Outcome) []delivery.Outcome {
	if p == nil {
		return outcomes
	}
	for i := range outcomes {
		o := &outcomes[i]
		switch {
		case p.give[o.Cluster] == giveCurrent:
		case p.give[o.Cluster] == giveComplete && o.Stage == delivery.Applied, o.Stage == delivery.Unreported && o.Known:
			o.Stage = delivery.Pending
		}
	}
	return outcomes
}

// explain adds to a summary the reason why no other member may begin.
func (p *progress) explain(summary *delivery.Summary) {
	if p == nil || summary.Refused || summary.Ready {
		return
	}
	sending := summary.Reason == v1.ReasonDelivering || summary.Reason == v1.ReasonApplying
	switch {
	case p.wait.Reason == v1.ReasonTooManyFailures:
		why := summary.Message
		if sending {
			why = cmp.Or(p.why, why)
		}
		summary.Message = fmt.Sprintf("%s failed and rollout.maxFailedClusters allows %d, so no other begins: repair the "+
			"cause, change the Baseline, or raise maxFailedClusters. %s", rollout.Clusters(p.failed), p.allowed, why)
		summary.Reason, summary.Stalled = p.wait.Reason, true
	case !sending:
	case p.wait.Reason == v1.ReasonPaused:
		summary.Reason = p.wait.Reason
		summary.Message = summary.Clusters.Summary + " clusters have it; it is paused: set spec.paused to false to continue"
	case p.wait.Reason == v1.ReasonSoaking, p.wait.Reason == v1.ReasonAwaitingApproval:
		summary.Reason, summary.Message = p.wait.Reason, p.wait.Message
	case p.waiting > 0 && summary.Reason == v1.ReasonDelivering:
		summary.Message = fmt.Sprintf("%s clusters have it; %d in progress, %d waiting for their turn",
			summary.Clusters.Summary, p.working, p.waiting)
	}
}
