// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// LeaderPatience is how long a connected member may be without a leading agent before the hub reports the problem. If
// a leader is killed, a new one takes over within 19 s.
const LeaderPatience = time.Minute

// vacancy is a period in which replicas of a member's agent send reports, but none of them is the leader. It is guarded
// by table.mu.
type vacancy struct {
	since time.Time
	timer *time.Timer
	long  bool // set once the vacancy has lasted for LeaderPatience
}

func (m *member) occupied() {
	if m.vacancy != nil {
		m.vacancy.timer.Stop()
		m.vacancy = nil
	}
}

// awaitLeaderLocked records whether one of a member's agents is the leader, and notifies listeners when none of them
// has been the leader for LeaderPatience.
func (l *leaders) awaitLeaderLocked(name types.NamespacedName) {
	m := l.table.members[name]
	if m == nil || isHost(name) {
		return
	}
	switch vacant := !l.table.closed && m.leaders() == 0 && m.reported(); {
	case !vacant:
		m.occupied()
	case m.vacancy == nil:
		v := &vacancy{since: l.table.now()}
		m.vacancy = v
		v.timer = time.AfterFunc(LeaderPatience, func() {
			l.table.mu.Lock()
			v.long = true
			lasted := m.vacancy == v
			l.table.mu.Unlock()
			if lasted {
				l.notices.notify(name)
			}
		})
	}
}

// reported reports whether a replica of the agent is connected and has sent a report. Node agents do not count.
// table.mu must be held.
func (m *member) reported() bool {
	replica := func(p Peer) bool { return !p.NodeAgent }
	return slices.ContainsFunc(m.sessions, func(s *session) bool { return s.report != nil && replica(s.peer) }) ||
		slices.ContainsFunc(m.remote, func(r remote) bool {
			return r.record.Report != nil && slices.ContainsFunc(r.record.Tunnels, replica)
		})
}
