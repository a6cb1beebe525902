// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/protocol"
)

// State is what the registry knows about a member.
type State struct {
	// Peers are the agents of the open tunnels at all replicas.
	Peers []Peer
	// Report is the newest report of a connected member's leading agent, or of any of its agents if none leads. It is nil
	// before the first report.
	Report *protocol.Report
	// ReportErr is why there is no report of a connected member.
	ReportErr error
	// LastSeen is when the last tunnel ended, or zero if none has ended since this process started.
	LastSeen time.Time
	// Returning is until when a member without a tunnel may be on its way back, because many members lost their tunnels at
	// the same time. It is zero if only a few did. If the tunnel ended at another replica whose clock is behind, the time
	// is earlier.
	Returning time.Time
	// LostBecause is why the last tunnel ended.
	LostBecause error
	// Left reports whether the last tunnel ended because the agent disconnected, in order to stop or to move.
	Left bool
	// NoLeader is since when no replica of the connected agent has led. It is zero if one leads, or if that time is
	// shorter than LeaderPatience.
	NoLeader time.Time
	// Clones are the two clusters that have the member's identity, or nil if it is a single cluster.
	Clones *Clones
	// Refusal is the latest rejection within RefusalMemory, or nil if there was none.
	Refusal *Rejection
}

// Connected reports whether a tunnel is open.
func (s State) Connected() bool { return len(s.Peers) > 0 }

// ByNodeAgent reports whether the member is connected only through node agents.
func (s State) ByNodeAgent() bool { return s.Connected() && s.Agents() == 0 }

// Agents returns the number of the member's connected agents without node agents. An agent that is moving has more than
// one tunnel, but counts once.
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

// States returns the state of members, including their tunnels at other replicas.
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

// agentState is what an agent reported about its cluster through one tunnel, or why it reported nothing.
type agentState struct {
	report *protocol.Report
	err    error
	epoch  int64 // the tunnel's epoch
}

// preferred returns the state to use out of two: a leader's before any other, any state before an empty one, and
// otherwise the newer one.
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

// stateHere returns the state that was reported through the tunnels at this replica. table.mu is held.
func (m *member) stateHere() agentState {
	var state agentState
	for _, s := range m.sessions {
		state = preferred(state, agentState{report: s.report, err: s.reportErr, epoch: s.peer.Epoch})
	}
	return state
}

// Size returns the number of connected members and the number of their tunnels, at all replicas.
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

// LocalSize returns the number of members that are connected to this replica, and the number of their tunnels here.
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

// Streams returns the number of requests in progress in all tunnels that end at this replica.
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
