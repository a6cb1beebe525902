// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"slices"
)

// drain waits until the open requests to a disconnecting agent have ended. Meanwhile, the agent receives no new
// requests.
func (t *Tunnels) drain(s *session) {
	name := s.peer.Name()
	t.table.mu.Lock()
	m := t.table.memberLocked(name)
	without(&m.sessions, s)
	m.draining = append(m.draining, s)
	if s.cause == nil {
		s.cause = ErrReportEnded
	}
	t.table.lostLocked(m, s.cause)
	surplus := slices.Clone(m.draining[:max(0, len(m.draining)-t.admission.bounds.ClusterTunnels)])
	t.table.mu.Unlock()
	// Close surplus draining tunnels. Otherwise, an agent could accumulate tunnels by ending each tunnel's report while
	// a shell is open in the tunnel.
	for _, oldest := range surplus {
		oldest.Close()
	}
	t.notices.changed(name)
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	_ = s.Drain(ctx) // the tunnel ends in any case
}

// ended removes a session after its tunnel has ended.
func (t *Tunnels) ended(s *session) {
	name := s.peer.Name()
	t.table.mu.Lock()
	m := t.table.memberLocked(name)
	if t.admission.workspaces[name.Namespace]--; t.admission.workspaces[name.Namespace] == 0 {
		delete(t.admission.workspaces, name.Namespace)
	}
	without(&m.draining, s)
	cause := s.cause
	if cause == nil {
		cause = s.Err()
	}
	wasOpen := without(&m.sessions, s)
	if wasOpen {
		t.table.lostLocked(m, cause)
	}
	t.table.dropLocked(name, m)
	t.table.mu.Unlock()
	t.table.log.Info("tunnel ended", "cluster", name, "cause", errorText(cause))
	if wasOpen {
		t.notices.changed(name)
	}
}

// without removes s from a list and reports whether s was in it.
func without(list *[]*session, s *session) bool {
	i := slices.Index(*list, s)
	if i < 0 {
		return false
	}
	*list = slices.Delete(*list, i, i+1)
	return true
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
