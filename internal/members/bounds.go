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

// ErrWorkspaceFull is returned when a workspace has reached its limit of tunnels.
var ErrWorkspaceFull = errors.New("the workspace has reached its limit of tunnels at this replica of the hub")

// Bounds limits the resources that members use on one replica.
type Bounds struct {
	// ClusterTunnels is the maximum number of tunnels per Cluster. When an agent opens one more tunnel, the Cluster's
	// oldest tunnel is closed.
	ClusterTunnels int
	// WorkspaceTunnels is the maximum number of tunnels for all Clusters in a workspace. Additional tunnels are
	// refused.
	WorkspaceTunnels int
}

// DefaultBounds returns the bounds that apply unless the configuration overrides them. A Cluster can run five agent
// replicas, plus one during an update, and each replica can open a new tunnel before it closes its old one. A workspace
// can have a thousand Clusters with two agent replicas each, even if all of these replicas reconnect at the same time.
func DefaultBounds() Bounds {
	return Bounds{ClusterTunnels: 12, WorkspaceTunnels: 4000}
}

const (
	// tooFastPause is how long a Cluster is prevented from opening tunnels after its agent has sent too much data.
	tooFastPause = time.Minute
	// fullPause is how long an agent waits before it retries when its workspace is full.
	fullPause = 30 * time.Second
	// refusalPause is the minimum time between two reported rejections for the same Cluster. Without this limit, a client
	// with a used token could cause a status update on every attempt.
	refusalPause = time.Minute
)

// Admission decides which agents can open a tunnel, and records why other agents were rejected.
type Admission struct {
	table   *table
	notices *Notices
	// The following fields are guarded by table.mu.
	bounds Bounds
	// workspaces counts this replica's tunnels by workspace, including draining tunnels.
	workspaces map[string]int
	refused    []func(name types.NamespacedName, reason, message string)
}

// Bound replaces the bounds.
func (a *Admission) Bound(b Bounds) {
	a.table.mu.Lock()
	defer a.table.mu.Unlock()
	a.bounds = b
}

// OnRefused registers f to be called after the registry itself has rejected an agent. f must not block.
func (a *Admission) OnRefused(f func(name types.NamespacedName, reason, message string)) {
	a.table.mu.Lock()
	defer a.table.mu.Unlock()
	a.refused = append(a.refused, f)
}

// Admit returns nil if the member can open a tunnel now. Otherwise, it returns the reason, and the time that the member
// should wait.
func (a *Admission) Admit(name types.NamespacedName) (time.Duration, error) {
	a.table.mu.Lock()
	wait, err := a.admitLocked(name)
	bounds := a.bounds
	a.table.mu.Unlock()
	if errors.Is(err, ErrWorkspaceFull) {
		a.turnAway(name, v1.ReasonTooManyTunnels, fmt.Sprintf(
			"workspace %s has %d tunnels at one replica of the hub, which is the limit; remove Clusters or agent replicas, "+
				"or raise limits.workspace.tunnels in the manager's configuration", name.Namespace, bounds.WorkspaceTunnels))
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

// suspend closes the member's tunnels to this replica because the member's agent sends too much data. The member cannot
// open another tunnel for a minute. The what argument names the kind of data, for example "reports".
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
	a.turnAway(name, v1.ReasonAgentTooFast, fmt.Sprintf(
		"the agent sends more %s than the hub allows; its tunnels were ended and can be opened again after %s. "+
			"Check that it is an agent of this Drover, read its log, and revoke it (delete the Secret %s%s) if this continues",
		what, tooFastPause, name.Name, v1.AgentSecretSuffix))
	for _, s := range sessions {
		s.Close()
	}
}

// Refused records that a client claiming to be a member was rejected, and reports whether it notified the listeners. It
// does not notify them if the previous rejection was less than a minute ago.
func (a *Admission) Refused(name types.NamespacedName, reason, message string) (notified bool) {
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

// Unproven records the rejection of a client that named a member but presented no proof, and reports whether it
// notified the listeners. Any client can cause such a rejection, so it is recorded only while the member is not
// connected. It never replaces the rejection of a client that presented proof, or an earlier rejection of the same
// kind.
func (a *Admission) Unproven(name types.NamespacedName, reason, message string) (notified bool) {
	a.table.mu.Lock()
	m, now := a.table.memberLocked(name), a.table.now()
	connected := m.connected()
	standing := m.refusal != nil && now.Sub(m.refusal.At) < RefusalMemory
	if connected || standing {
		if !connected && m.refusal.Unproven { // extend the earlier rejection
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

// outweighs reports whether f takes precedence over other. The rejection of a client that presented proof takes
// precedence over the rejection of a client that did not. Otherwise, the newer rejection takes precedence.
func (f *Rejection) outweighs(other *Rejection) bool {
	if other == nil || f.Unproven != other.Unproven {
		return other == nil || other.Unproven
	}
	return f.At.After(other.At)
}

// turnAway records that the registry itself rejected an agent, and calls the listeners.
func (a *Admission) turnAway(name types.NamespacedName, reason, message string) {
	a.table.mu.Lock()
	listeners := a.refused
	a.table.mu.Unlock()
	if len(listeners) == 0 {
		a.Refused(name, reason, message)
	}
	for _, f := range listeners { // the listeners may call Refused
		f(name, reason, message)
	}
}

// surplusLocked returns the member's oldest tunnel if the member has more than the given number of tunnels. Tunnels
// that are already closing do not count.
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
