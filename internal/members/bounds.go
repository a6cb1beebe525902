// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
)

// ErrWorkspaceFull refuses a tunnel of a workspace that has as many as it may.
var ErrWorkspaceFull = errors.New("the workspace has as many tunnels as it may have at this replica of the hub")

// Bounds on what members cost a replica.
type Bounds struct {
	// ClusterTunnels are the tunnels of one Cluster. The oldest beyond it is ended.
	ClusterTunnels int
	// WorkspaceTunnels are the tunnels of all Clusters of one workspace. A new one beyond it is refused.
	WorkspaceTunnels int
}

// DefaultBounds have room for five agent replicas of a Cluster and one more during an update, each of which may be opening a new tunnel before
// it closes the old; and in a workspace for a thousand Clusters with two agent replicas that all move at once.
func DefaultBounds() Bounds {
	return Bounds{ClusterTunnels: 12, WorkspaceTunnels: 4000}
}

// Pauses of agents that are rejected.
const (
	// tooFastPause is how long a Cluster may open no tunnel after its agent sent too much.
	tooFastPause = time.Minute
	// fullPause is after what time an agent tries again whose workspace was full.
	fullPause = 30 * time.Second
	// refusalPause is how long a rejection is kept before another one of the same Cluster is reported: a client with a used token could otherwise
	// cause a write of the status with each attempt.
	refusalPause = time.Minute
)

// Bound replaces the bounds.
func (r *Registry) Bound(b Bounds) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bounds = b
}

// OnRefused calls f after the registry itself has rejected an agent. f must not block.
func (r *Registry) OnRefused(f func(name types.NamespacedName, reason, message string)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listeners.refused = append(r.listeners.refused, f)
}

// Admit says why a member may open no tunnel now and when it may come back; nil if it may.
func (r *Registry) Admit(name types.NamespacedName) (time.Duration, error) {
	r.mu.Lock()
	wait, err := r.admitLocked(name)
	bounds := r.bounds
	r.mu.Unlock()
	if errors.Is(err, ErrWorkspaceFull) {
		r.turnAway(name, v1.ReasonTooManyTunnels, fmt.Sprintf("workspace %s has %d tunnels at one replica of the hub, which is the limit; "+
			"remove Clusters or agent replicas, or raise limits.workspace.tunnels in the manager's configuration", name.Namespace, bounds.WorkspaceTunnels))
	}
	return wait, err
}

func (r *Registry) admitLocked(name types.NamespacedName) (time.Duration, error) {
	if m := r.members[name]; m != nil && r.now().Before(m.paused) {
		return m.paused.Sub(r.now()), ErrTooFast
	}
	if r.workspaces[name.Namespace] >= r.bounds.WorkspaceTunnels {
		return fullPause, ErrWorkspaceFull
	}
	return 0, nil
}

// TooFast ends the tunnels of a member here because its agent sends more of something than it may, and lets it open none for a minute.
func (r *Registry) TooFast(name types.NamespacedName, what string) {
	r.mu.Lock()
	m := r.memberLocked(name)
	m.paused = r.now().Add(tooFastPause)
	sessions := slices.Concat(m.sessions, m.draining)
	for _, s := range sessions {
		if s.cause == nil {
			s.cause = ErrTooFast
		}
	}
	r.mu.Unlock()
	r.turnAway(name, v1.ReasonAgentTooFast, fmt.Sprintf("the agent sends more %s than the hub lets it; its tunnels were ended and may be opened again after %s. "+
		"Is it an agent of this Drover? Look at its log, and revoke it (delete the Secret %s%s) if it goes on", what, tooFastPause, name.Name, v1.AgentSecretSuffix))
	for _, s := range sessions {
		s.Close()
	}
}

// Unproven remembers the rejection of a client that named a member without any proof, and reports whether listeners were notified. Any client
// can cause it, so it is kept only for a member that is not connected, and never replaces a rejection that was proved, nor another of its kind.
func (r *Registry) Unproven(name types.NamespacedName, reason, message string) (told bool) {
	connected := r.State(name).Connected()
	r.mu.Lock()
	m, now := r.memberLocked(name), r.now()
	standing := m.refusal != nil && now.Sub(m.refusal.At) < RefusalMemory
	if connected || standing {
		if !connected && m.refusal.Unproven { // it goes on
			m.refusal = &Rejection{Reason: m.refusal.Reason, Message: m.refusal.Message, At: now, Unproven: true}
		}
		r.dropLocked(name, m)
		r.mu.Unlock()
		return false
	}
	m.refusal = &Rejection{Reason: reason, Message: message, At: now, Unproven: true}
	r.mu.Unlock()
	r.log.V(1).Info("unknown agent refused", "cluster", name, "reason", reason)
	r.changed(name)
	return true
}

// outweighs reports whether this rejection is shown instead of another one: it was proved, or is newer.
func (f *Rejection) outweighs(other *Rejection) bool {
	if other == nil || f.Unproven != other.Unproven {
		return other == nil || other.Unproven
	}
	return f.At.After(other.At)
}

// turnAway records a rejection by the registry itself and notifies the listeners.
func (r *Registry) turnAway(name types.NamespacedName, reason, message string) {
	r.mu.Lock()
	listeners := r.listeners.refused
	r.mu.Unlock()
	if len(listeners) == 0 {
		r.Refused(name, reason, message)
	}
	for _, f := range listeners { // they call Refused
		f(name, reason, message)
	}
}

// surplusLocked returns the tunnel that is one too many, if there is one. Those that are being ended already do not count.
func (m *member) surplusLocked(most int) *session {
	var oldest *session
	open := 0
	for _, s := range slices.Backward(m.sessions) {
		if s.cause == nil {
			oldest = s
			open++
		}
	}
	if open <= most {
		return nil
	}
	oldest.cause = ErrTooManyTunnels
	return oldest
}
