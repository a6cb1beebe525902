// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
)

// maxPlans is the maximum number of plans whose status is stored for one member. The number is limited because the
// member's agent may be malicious.
const maxPlans = 128

// MemberState is the state of a plan in a member, as known to the hub.
type MemberState struct {
	// Connected is true if the member is connected.
	Connected bool
	// Refuses is the reason why the member's agent runs no plans: ReasonAgentTooOld, ReasonAgentReadOnly, or
	// ReasonIdentityMismatch if two clusters share the identity. It is empty if the agent runs plans or is not connected.
	Refuses string
	// Unchecked is true if the connected agent does not check the member before a plan starts, and its Plans have no
	// gates.
	Unchecked bool
	// Reported is true if the agent has reported all its plans and continues to report changes. Otherwise, Hold and
	// Status may be outdated or empty.
	Reported bool
	// Silent is the time when the hub started waiting for a full report from an agent that runs plans. It is zero if
	// the agent has sent this report or is not connected.
	Silent time.Time
	// Hold explains why the member does not run plans at the moment. It is empty if the member runs plans.
	Hold string
	// Status is the status of the Plan in the member, or nil if the member does not have the Plan. It is shared and
	// must not be modified.
	Status *v1.PlanStatus
}

// Progress stores the members' reports about plans. It keeps the last status of a disconnected member. A new leader has
// no data until the agents have reported. Progress implements members.Follower. All methods are safe for concurrent
// use.
type Progress struct {
	state func(types.NamespacedName) members.State

	mu       sync.Mutex // guards the fields below
	leads    bool
	members  map[types.NamespacedName]*progress
	onPlan   []func(plan types.NamespacedName)
	onMember []func(member types.NamespacedName)
}

// progress contains the reports of one member.
type progress struct {
	runs      bool   // whether the member is connected with an agent that runs plans, unless refuses is set
	refuses   string // see MemberState.Refuses
	unchecked bool   // see MemberState.Unchecked
	synced    bool
	silent    time.Time // when this leader started waiting for a full report
	hold      string
	states    map[string]*v1.PlanStatus
}

// NewProgress returns an empty Progress. state returns the state of a member's connection.
func NewProgress(state func(types.NamespacedName) members.State) *Progress {
	return &Progress{state: state, members: map[types.NamespacedName]*progress{}}
}

// OnPlan registers f, which is called after the status of a plan has changed in a member. f must not block.
func (p *Progress) OnPlan(f func(plan types.NamespacedName)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onPlan = append(p.onPlan, f)
}

// OnMember registers f, which is called when all reports of a member may have changed. f must not block.
func (p *Progress) OnMember(f func(member types.NamespacedName)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onMember = append(p.onMember, f)
}

// State returns the state of a plan in a member.
func (p *Progress) State(plan string, member types.NamespacedName) MemberState {
	connection := p.state(member)
	state := MemberState{Connected: connection.Connected()}
	if state.Connected && connection.Report != nil {
		state.Refuses, state.Unchecked = refusal(connection.Report), unchecked(connection.Report)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.members[member]
	if m == nil {
		return state
	}
	state.Hold, state.Status, state.Reported = m.hold, m.states[plan], m.synced && state.Connected
	if state.Connected && !m.synced {
		state.Silent = m.silent
	}
	return state
}

// Start measures how long agents have been silent, until ctx is canceled.
func (p *Progress) Start(ctx context.Context) error {
	p.mu.Lock()
	p.leads = true
	for _, m := range p.members {
		p.lookLocked(m)
	}
	p.mu.Unlock()
	<-ctx.Done()
	return nil
}

// Changed checks a member's connection. It is the callback for members.Registry.OnChange.
func (p *Progress) Changed(member types.NamespacedName) {
	state := p.state(member)
	runs, refuses := state.Connected() && state.Report != nil, ""
	blind := runs && unchecked(state.Report)
	if runs {
		refuses = refusal(state.Report)
	}
	if runs && state.Clones != nil {
		refuses = v1.ReasonIdentityMismatch
	}
	p.mu.Lock()
	m := p.memberLocked(member)
	changed := runs != m.runs || refuses != m.refuses || blind != m.unchecked
	m.runs, m.refuses, m.unchecked = runs, refuses, blind
	p.lookLocked(m)
	p.dropLocked(member)
	listeners := p.onMember
	p.mu.Unlock()
	if changed {
		notify(listeners, member)
	}
}

// lookLocked records when an agent became silent. The caller must hold mu.
func (p *Progress) lookLocked(m *progress) {
	switch {
	case !m.runs || m.refuses != "" || m.synced:
		m.silent = time.Time{}
	case p.leads && m.silent.IsZero():
		m.silent = time.Now()
	}
}

func (p *Progress) memberLocked(name types.NamespacedName) *progress {
	m := p.members[name]
	if m == nil {
		m = &progress{}
		p.members[name] = m
	}
	return m
}

// dropLocked removes a member that is disconnected and has no reports to keep.
func (p *Progress) dropLocked(name types.NamespacedName) {
	if m := p.members[name]; m != nil && !m.runs && !m.synced && len(m.states) == 0 && m.hold == "" {
		delete(p.members, name)
	}
}

// Forget drops the reports of a member whose Cluster is gone, unless the member is still connected.
func (p *Progress) Forget(member types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.members[member]; m != nil && !m.runs && !m.synced {
		delete(p.members, member)
	}
}

// Synced replaces the reports of a member.
func (p *Progress) Synced(member types.NamespacedName, all []*protocol.PlanEvent) {
	p.mu.Lock()
	m := p.memberLocked(member)
	m.hold, m.states, m.synced = "", nil, true
	for _, event := range all {
		m.takeLocked(event)
	}
	p.lookLocked(m)
	listeners := p.onMember
	p.mu.Unlock()
	notify(listeners, member)
}

// Event applies one reported change.
func (p *Progress) Event(member types.NamespacedName, event *protocol.PlanEvent) {
	p.mu.Lock()
	plan, all := p.memberLocked(member).takeLocked(event)
	onPlan, onMember := p.onPlan, p.onMember
	p.mu.Unlock()
	if all {
		notify(onMember, member)
	} else if plan != "" {
		notify(onPlan, types.NamespacedName{Namespace: member.Namespace, Name: plan})
	}
}

// Stopped records that changes to a member's state are no longer reported. Earlier reports are kept.
func (p *Progress) Stopped(member types.NamespacedName) {
	p.mu.Lock()
	m := p.memberLocked(member)
	m.synced = false
	p.lookLocked(m)
	p.dropLocked(member)
	listeners := p.onMember
	p.mu.Unlock()
	notify(listeners, member)
}

func notify(listeners []func(types.NamespacedName), name types.NamespacedName) {
	for _, f := range listeners {
		f(name)
	}
}

// takeLocked applies an event. It returns the plan whose status has changed. The all result is true if the hold for all
// plans has changed instead.
func (m *progress) takeLocked(event *protocol.PlanEvent) (plan string, all bool) {
	switch {
	case event.Hold != nil && event.Hold.Reason != m.hold:
		m.hold = event.Hold.Reason
		return "", true
	case event.State != nil && m.keepLocked(event.State):
		return event.State.Name, false
	case event.Removed != "" && m.states[event.Removed] != nil:
		delete(m.states, event.Removed)
		return event.Removed, false
	}
	return "", false
}

// keepLocked stores a status, and reports whether the status has changed.
func (m *progress) keepLocked(state *protocol.PlanState) bool {
	was := m.states[state.Name]
	if was == nil && len(m.states) >= maxPlans {
		return false
	}
	status := &state.Status
	status.Conditions = slices.DeleteFunc(status.Conditions, func(c metav1.Condition) bool { return c.Type != v1.ConditionComplete })
	if len(status.Conditions) > 0 && status.Conditions[0].Status == metav1.ConditionTrue {
		status.Gates = nil // the findings concern the cluster as it was before the plan
	}
	if m.states == nil {
		m.states = map[string]*v1.PlanStatus{}
	}
	m.states[state.Name] = status
	return was == nil || !reflect.DeepEqual(was, status)
}

// unchecked reports whether an agent that runs plans does not check the member before a plan starts.
func unchecked(r *protocol.Report) bool {
	return refusal(r) == "" && !r.Has(protocol.FeatureUpgradeChecks)
}

// refusal returns the reason why an agent runs no plans, or "" if the agent runs plans.
func refusal(r *protocol.Report) string {
	switch {
	case r.Profile == string(v1.ProfileReadOnly):
		return v1.ReasonAgentReadOnly
	case !r.Has(protocol.FeaturePlans):
		return v1.ReasonAgentTooOld
	}
	return ""
}
