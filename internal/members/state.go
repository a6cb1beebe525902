// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/protocol"
)

// State is the state of a member, as known to the registry.
type State struct {
	// Peers are the agents that have open tunnels to any replica.
	Peers []Peer
	// Report is the newest report of a connected member's leading agent, or of any of its agents if none is the leader.
	// It is nil before the first report.
	Report *protocol.Report
	// ReportErr explains why a connected member has no report.
	ReportErr error
	// LastSeen is the time when the last tunnel ended. It is zero if none has ended since this process started.
	LastSeen time.Time
	// Returning is the deadline for the reconnection of a member that lost its tunnels at the same time as many other
	// members. It is zero if only a few members lost their tunnels. It is too early if the tunnel ended at another
	// replica whose clock is behind.
	Returning time.Time
	// LostBecause is the reason why the last tunnel ended.
	LostBecause error
	// Left is true if the last tunnel ended because the agent disconnected, either to stop or to move to another
	// replica.
	Left bool
	// NoLeader is the start of the current period in which none of the member's connected agents is the leader. It is zero
	// if one of them is the leader, or if the period is still shorter than LeaderPatience.
	NoLeader time.Time
	// Clones identifies two clusters that share the member's identity. It is nil if there are none.
	Clones *Clones
	// Refusal is the latest rejection within RefusalMemory, or nil if there was none.
	Refusal *Rejection
}

// Connected reports whether a tunnel is open.
func (s State) Connected() bool { return len(s.Peers) > 0 }

// ByNodeAgent reports whether the member is connected only through node agents.
func (s State) ByNodeAgent() bool { return s.Connected() && s.Agents() == 0 }

// Agents returns the number of the member's connected agents, excluding node agents. An agent that is moving has more
// than one tunnel but counts only once.
func (s State) Agents() int {
	instances, nameless := map[string]struct{}{}, 0
	for _, p := range s.Peers {
		switch {
		case p.NodeAgent:
		case p.Instance == "":
			nameless++
		default:
			instances[p.Instance] = struct{}{}
		}
	}
	return len(instances) + nameless
}

// States returns the state of members. The state includes the tunnels to all replicas.
type States struct{ table *table }

// State returns the state of a member.
func (all *States) State(name types.NamespacedName) State {
	all.table.mu.Lock()
	defer all.table.mu.Unlock()
	m := all.table.members[name]
	if m == nil {
		return State{}
	}
	state := State{LastSeen: m.loss.at, LostBecause: m.loss.because, Left: errors.Is(m.loss.because, ErrReportEnded)}
	state.Clones = m.clones()
	if m.vacancy != nil && m.vacancy.long {
		state.NoLeader = m.vacancy.since
	}
	reported := m.stateHere()
	fresh := func(refusal *Rejection) bool {
		return refusal != nil && all.table.now().Sub(refusal.At) < RefusalMemory
	}
	var refusal *Rejection
	if fresh(m.refusal) {
		refusal = m.refusal
	}
	for _, s := range m.sessions {
		state.Peers = append(state.Peers, s.peer)
	}
	for _, other := range m.remote {
		record := other.record
		state.Peers = append(state.Peers, record.Tunnels...)
		reported = preferred(reported, record.state())
		if lost := record.Loss; lost != nil && lost.At.After(state.LastSeen) {
			state.LastSeen, state.LostBecause, state.Left = lost.At, errors.New(lost.Because), lost.Left
		}
		if fresh(record.Refusal) && record.Refusal.outweighs(refusal) {
			refusal = record.Refusal
		}
	}
	state.Report, state.ReportErr = reported.report, reported.err
	if !state.Connected() && !state.LastSeen.IsZero() {
		state.Returning = all.table.losses.returning(state.LastSeen, len(all.table.members))
	}
	if refusal != nil {
		shown := *refusal
		state.Refusal = &shown
	}
	return state
}

// agentState contains the report that an agent has sent through one tunnel. If there is no report, it contains the
// reason.
type agentState struct {
	report *protocol.Report
	err    error
	epoch  int64 // the tunnel's epoch
}

// preferred returns the better of two states. A leader's state is preferred to other states, and any state is preferred
// to an empty one. Otherwise, the newer state is preferred.
func preferred(a, b agentState) agentState {
	rank := func(s agentState) int {
		switch {
		case s.report != nil && s.report.Leader:
			return 2
		case s.report != nil || s.err != nil:
			return 1
		}
		return 0
	}
	if x, y := rank(a), rank(b); x != y {
		if x > y {
			return a
		}
		return b
	}
	if a.epoch >= b.epoch {
		return a
	}
	return b
}

// stateHere returns the state reported through the tunnels to this replica. table.mu must be held.
func (m *member) stateHere() agentState {
	var state agentState
	for _, s := range m.sessions {
		state = preferred(state, agentState{report: s.report, err: s.reportErr, epoch: s.peer.Epoch})
	}
	return state
}

// Size returns the number of connected members and the number of their tunnels, across all replicas.
func (all *States) Size() (members, tunnels int) {
	all.table.mu.Lock()
	defer all.table.mu.Unlock()
	for _, m := range all.table.members {
		n := len(m.sessions)
		for _, remote := range m.remote {
			n += len(remote.record.Tunnels)
		}
		if n > 0 {
			members++
			tunnels += n
		}
	}
	return members, tunnels
}

// LocalSize returns the number of members that are connected to this replica, and the number of their tunnels to this
// replica.
func (all *States) LocalSize() (members, tunnels int) {
	all.table.mu.Lock()
	defer all.table.mu.Unlock()
	for _, m := range all.table.members {
		if len(m.sessions) > 0 {
			members++
			tunnels += len(m.sessions)
		}
	}
	return members, tunnels
}

// Streams returns the number of requests in progress across all tunnels that end at this replica.
func (all *States) Streams() int {
	all.table.mu.Lock()
	defer all.table.mu.Unlock()
	streams := 0
	for _, m := range all.table.members {
		for _, s := range m.sessions {
			if counting, ok := s.Session.(interface{ Streams() int }); ok {
				streams += counting.Streams()
			}
		}
	}
	return streams
}
