// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"errors"
	"slices"
)

// drain lets the open requests of an agent that disconnects end. For new requests the agent is not connected any more.
func (r *Registry) drain(s *session) {
	name := s.peer.Name()
	r.mu.Lock()
	m := r.memberLocked(name)
	without(&m.sessions, s)
	m.draining = append(m.draining, s)
	if s.cause == nil {
		s.cause = ErrReportEnded
	}
	r.lostLocked(m, s.cause)
	surplus := slices.Clone(m.draining[:max(0, len(m.draining)-r.bounds.ClusterTunnels)])
	r.mu.Unlock()
	for _, oldest := range surplus { // else an agent could collect tunnels by ending its report in each while a shell is open
		oldest.Close()
	}
	r.changed(name)
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	_ = s.Drain(ctx) // it ends either way
}

// ended takes a session out after its tunnel has ended.
func (r *Registry) ended(s *session) {
	name := s.peer.Name()
	r.mu.Lock()
	m := r.memberLocked(name)
	if r.workspaces[name.Namespace]--; r.workspaces[name.Namespace] == 0 {
		delete(r.workspaces, name.Namespace)
	}
	without(&m.draining, s)
	cause := s.cause
	if cause == nil {
		cause = s.Err()
	}
	wasOpen := without(&m.sessions, s)
	if wasOpen {
		r.lostLocked(m, cause)
	}
	r.dropLocked(name, m)
	r.mu.Unlock()
	r.log.Info("tunnel ended", "cluster", name, "cause", errorText(cause))
	if wasOpen {
		r.changed(name)
	}
}

// lostLocked records when and why a member lost its last tunnel here.
func (r *Registry) lostLocked(m *member, cause error) {
	if len(m.sessions) > 0 {
		return
	}
	m.loss = loss{at: r.now(), because: cause}
	if !m.connected() && !errors.Is(cause, ErrRevoked) { // a Cluster that is deleted, or an agent that is revoked, does not come back
		r.losses.lost(m.loss.at)
	}
}

// without takes s out of a list and reports whether it was there.
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
