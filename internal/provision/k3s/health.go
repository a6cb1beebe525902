// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"slices"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// hasData reports whether any member has the cluster's data.
func (r *roster) hasData() bool {
	return slices.ContainsFunc(r.with(provisionv1.RoleEtcd), func(m *member) bool {
		return m.Held != nil && !r.isOld(&m.Host) && (m.up() || !m.Held.Rejoins)
	})
}

// lost reports whether no server has the cluster's data.
func (r *roster) lost() bool {
	for _, m := range r.servers() {
		if m.is(provisionv1.RoleEtcd) && !r.isOld(&m.Host) {
			return false
		}
	}
	return true
}

// etcd returns the number of etcd members, and the number of working ones. A host that no longer exists remains a
// member until it is removed from the cluster. A host that could not join is not a member.
func (r *roster) etcd() (members, work int) {
	for name, node := range r.Stored.Nodes {
		if !node.Etcd {
			continue
		}
		host := r.leaving(name, node.UID)
		if m := r.named(name); m != nil && m.UID == node.UID {
			host = &m.Host
		}
		if host != nil && (host.Held == nil && !node.Planned || host.neverJoined() || r.isOld(host)) {
			continue
		}
		members++
		work += count(host != nil && host.working())
	}
	return members, work
}

func quorum(members int) int { return members/2 + 1 }

// canSpareOne reports whether an etcd member may be restarted. With three or more members, etcd must not lose quorum.
// With one or two members, every restart causes a loss of quorum. In that case, all members must be working before the
// restart.
func (r *roster) canSpareOne() bool {
	members, work := r.etcd()
	if members <= 2 {
		return work >= members
	}
	return work-1 >= quorum(members)
}

// current reports whether a host has been started with its current instructions.
func (r *roster) current(m *member) bool {
	if m.Held == nil {
		return false
	}
	now, err := r.write.render(m, m.Held.Join, duties{})
	return err == nil && now.Start == m.Held.Start
}

// operator returns the server that removes nodes, or nil if there is none. The server must be working and up to date. A
// server that has already started to remove nodes is preferred.
func (r *roster) operator() *member {
	var best *member
	for _, m := range r.ordered() {
		if !m.is(provisionv1.RoleControlPlane) || !m.working() || !r.current(m) {
			continue
		}
		if best == nil || len(best.Held.Removes) == 0 && len(m.Held.Removes) > 0 {
			best = m
		}
	}
	return best
}

// idle returns a server that has the role and can be given a task, or nil if there is none.
func (r *roster) idle(role provisionv1.HostRole) *member {
	for _, m := range r.ordered() {
		if m.is(role) && m.up() && r.current(m) {
			return m
		}
	}
	return nil
}

// holder returns the server with the given task, or nil if there is none.
func (r *roster) holder(id string) *member {
	for _, m := range r.stay {
		if m.Held != nil && m.Held.Task == id {
			return m
		}
	}
	return nil
}

// changing returns a server that is being started, or "" if there is none. Other servers do not wait for a server that
// has failed. They wait for a disconnected server only if it lost its connection during the change.
func (r *roster) changing() string {
	for _, m := range r.ordered() {
		if m.server() && m.Held != nil && m.State.Busy() && (m.Connected || m.Held.Changed && r.current(m)) {
			return m.Name
		}
	}
	return ""
}

// unavailable counts the workers that are being changed, and the workers that failed or lost their connection because
// of the current change. The count prevents one change from breaking all workers. Workers that were already broken are
// not counted.
func (r *roster) unavailable() (n int) {
	for _, m := range r.stay {
		if m.server() || m.Held == nil || !m.Held.Changed || m.up() {
			continue
		}
		if (m.Connected || m.State.Busy()) && r.current(m) {
			n++
		}
	}
	return n
}

// broken returns a server that the current change has broken, or "" if there is none. It includes servers that are
// leaving the cluster, but not other, the server that is to be changed next.
func (r *roster) broken(other *member) string {
	for _, m := range slices.Concat(r.ordered(), r.leavers()) {
		if m.server() && m.Name != other.Name && m.Held != nil && m.Held.Changed && m.Connected && m.State == progress.Failed && r.current(m) {
			return m.Name
		}
	}
	return ""
}

// behind returns a control plane server that is not running the version in the spec, or "" if there is none.
// Disconnected servers are ignored, because they serve no users.
func (r *roster) behind() string {
	for _, m := range r.ordered() {
		if m.is(provisionv1.RoleControlPlane) && m.Held != nil && m.Connected && (m.Held.Version != r.Spec.Version || !m.working()) {
			return m.Name
		}
	}
	return ""
}
