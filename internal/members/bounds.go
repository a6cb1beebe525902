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

// DefaultBounds have room for five agent replicas of a Cluster and one more during an update, each of which may be
// opening a new tunnel before it closes the old; and in a workspace for a thousand Clusters with two agent replicas
// that all move at once.
func DefaultBounds() Bounds {
	return Bounds{ClusterTunnels: 12, WorkspaceTunnels: 4000}
}

// Pauses of agents that are rejected.
const (
	// tooFastPause is how long a Cluster may open no tunnel after its agent sent too much.
	tooFastPause = time.Minute
	// fullPause is after what time an agent tries again whose workspace was full.
	fullPause = 30 * time.Second
	// refusalPause is how long a rejection is kept before another one of the same Cluster is reported: a client with a
	// used token could otherwise cause a write of the status with each attempt.
	refusalPause = time.Minute
)

// Admission decides which agents may open a tunnel, and remembers why others were turned away.
type Admission struct {
	table   *table
	notices *Notices
	// What follows is guarded by table.mu.
	bounds Bounds
	// workspaces counts the tunnels that end here, including tunnels that carry nothing new.
	workspaces map[string]int
	refused    []func(name types.NamespacedName, reason, message string)
}

// Bound replaces the bounds.
func (a *Admission) Bound(b Bounds) {
	a.table.mu.Lock()
	defer a.table.mu.Unlock()
	a.bounds = b
}

// OnRefused calls f after the registry itself has rejected an agent. f must not block.
func (a *Admission) OnRefused(f func(name types.NamespacedName, reason, message string)) {
	a.table.mu.Lock()
	defer a.table.mu.Unlock()
	a.refused = append(a.refused, f)
}

// Admit says why a member may open no tunnel now and when it may come back; nil if it may.
func (a *Admission) Admit(name types.NamespacedName) (time.Duration, error) {
	a.table.mu.Lock()
	wait, err := a.admitLocked(name)
	bounds := a.bounds
	a.table.mu.Unlock()
	if errors.Is(err, ErrWorkspaceFull) {
		a.turnAway(name, v1.ReasonTooManyTunnels, fmt.Sprintf("workspace %s has %d tunnels at one replica of the hub, which is the limit; "+
			"remove Clusters or agent replicas, or raise limits.workspace.tunnels in the manager's configuration", name.Namespace, bounds.WorkspaceTunnels))
	}
	return wait, err
}

func (a *Admission) admitLocked(name types.NamespacedName) (time.Duration, error) {
	if m := a.table.members[name]; m != nil && a.table.now().Before(m.paused) {
		return m.paused.Sub(a.table.now()), ErrTooFast
	}
	if a.workspaces[name.Namespace] >= a.bounds.WorkspaceTunnels {
		return fullPause, ErrWorkspaceFull
	}
	return 0, nil
}

// suspend ends the tunnels of a member here because its agent sends more of something than it may, and lets it open
// none for a minute.
func (a *Admission) suspend(name types.NamespacedName, what string) {
	a.table.mu.Lock()
	m := a.table.memberLocked(name)
	m.paused = a.table.now().Add(tooFastPause)
	sessions := slices.Concat(m.sessions, m.draining)
	for _, s := range sessions {
		if s.cause == nil {
			s.cause = ErrTooFast
		}
	}
	a.table.mu.Unlock()
	a.turnAway(name, v1.ReasonAgentTooFast, fmt.Sprintf("the agent sends more %s than the hub lets it; its tunnels were ended and may be opened again after %s. "+
		"Is it an agent of this Drover? Look at its log, and revoke it (delete the Secret %s%s) if it goes on", what, tooFastPause, name.Name, v1.AgentSecretSuffix))
	for _, s := range sessions {
		s.Close()
	}
}

// Refused remembers the rejection of a client that claimed to be a member, and reports whether listeners were notified.
// Within a minute of another rejection they are not.
func (a *Admission) Refused(name types.NamespacedName, reason, message string) (told bool) {
	a.table.mu.Lock()
	m, now := a.table.memberLocked(name), a.table.now()
	if m.refusal != nil && !m.refusal.Unproven && now.Sub(m.refusal.At) < refusalPause {
		a.table.mu.Unlock()
		return false
	}
	m.refusal = &Rejection{Reason: reason, Message: message, At: now}
	a.table.mu.Unlock()
	a.table.log.Info("agent refused", "cluster", name, "reason", reason, "message", message)
	a.notices.changed(name)
	return true
}

// Unproven remembers the rejection of a client that named a member without any proof, and reports whether listeners
// were notified. Any client can cause it, so it is kept only for a member that is not connected, and never replaces a
// rejection that was proved, nor another of its kind.
func (a *Admission) Unproven(name types.NamespacedName, reason, message string) (told bool) {
	a.table.mu.Lock()
	m, now := a.table.memberLocked(name), a.table.now()
	connected := m.connected()
	standing := m.refusal != nil && now.Sub(m.refusal.At) < RefusalMemory
	if connected || standing {
		if !connected && m.refusal.Unproven { // it goes on
			m.refusal = &Rejection{Reason: m.refusal.Reason, Message: m.refusal.Message, At: now, Unproven: true}
		}
		a.table.dropLocked(name, m)
		a.table.mu.Unlock()
		return false
	}
	m.refusal = &Rejection{Reason: reason, Message: message, At: now, Unproven: true}
	a.table.mu.Unlock()
	a.table.log.V(1).Info("unknown agent refused", "cluster", name, "reason", reason)
	a.notices.changed(name)
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
func (a *Admission) turnAway(name types.NamespacedName, reason, message string) {
	a.table.mu.Lock()
	listeners := a.refused
	a.table.mu.Unlock()
	if len(listeners) == 0 {
		a.Refused(name, reason, message)
	}
	for _, f := range listeners { // they call Refused
		f(name, reason, message)
	}
}

// surplusLocked returns the tunnel that is one too many, if there is one. Those that are being ended already do not
// count.
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
