// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// LeaderPatience is how long a connected agent may have no leader before that is worth telling. A leader that dies is
// replaced within 19 s.
const LeaderPatience = time.Minute

// vacancy is the time in which replicas of a member's agent are connected and none leads. Registry.mu guards it.
type vacancy struct {
	since time.Time // zero while there is a leader, or no replica
	timer *time.Timer
	long  bool // it has lasted for LeaderPatience
}

// end ends it.
func (v *vacancy) end() {
	if v.timer != nil {
		v.timer.Stop()
	}
	*v = vacancy{}
}

// awaitLeaderLocked notes whether a member's agent has a leader, and notifies listeners once it has had none for
// LeaderPatience.
func (r *Registry) awaitLeaderLocked(name types.NamespacedName) {
	m := r.members[name]
	if m == nil || isHost(name) {
		return
	}
	vacant := !r.closed && m.replicas() && m.leaders() == 0
	switch {
	case !vacant:
		m.vacancy.end()
	case m.vacancy.since.IsZero():
		since := r.now()
		m.vacancy.since = since
		m.vacancy.timer = time.AfterFunc(LeaderPatience, func() {
			r.mu.Lock()
			lasted := m.vacancy.since.Equal(since) && !since.IsZero()
			m.vacancy.long = m.vacancy.long || lasted
			r.mu.Unlock()
			if lasted {
				r.notify(name)
			}
		})
	}
}

// replicas reports whether a replica of the agent is connected, and not only node agents. Registry.mu is held.
func (m *member) replicas() bool {
	replica := func(p Peer) bool { return !p.NodeAgent }
	return slices.ContainsFunc(m.sessions, func(s *session) bool { return replica(s.peer) }) ||
		slices.ContainsFunc(m.remote, func(r remote) bool { return slices.ContainsFunc(r.record.Tunnels, replica) })
}
