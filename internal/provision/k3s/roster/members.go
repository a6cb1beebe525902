// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package roster

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// Member holds a Host that is claimed for the cluster, and the pool of the Host.
type Member struct {
	Host
	Pool *provisionv1.HostPool
}

// Is reports whether a host has a role.
func (m *Member) Is(role provisionv1.HostRole) bool { return slices.Contains(m.Pool.Roles, role) }

// IsServer reports whether a host has a role of a server.
func (m *Member) IsServer() bool {
	return m.Is(provisionv1.RoleEtcd) || m.Is(provisionv1.RoleControlPlane)
}

// Roles returns the roles of a host, sorted and separated by commas.
func (m *Member) Roles() string { return rolesOf(m.Pool) }

func rolesOf(pool *provisionv1.HostPool) string {
	roles := slices.Sorted(slices.Values(pool.Roles))
	var names []string
	for _, role := range roles {
		names = append(names, string(role))
	}
	return strings.Join(names, ",")
}

// Up reports whether a host is working and has carried out its instructions.
func (m *Member) Up() bool {
	return m.Connected && m.Held != nil && m.State == progress.Up && m.Held.Stopped == "" && m.Held.Finds == ""
}

// Working reports whether a host fulfills its role in the cluster. Hosts that are removing a node or carrying out a
// task are working too, because these duties do not require a restart.
func (h *Host) Working() bool {
	if !h.Connected || h.Held == nil || h.Held.Stopped != "" {
		return false
	}
	return h.State == progress.Up || h.hasDuties() && h.State != progress.Failed
}

// hasDuties reports whether a host is removing a node or has a task.
func (h *Host) hasDuties() bool { return len(h.Held.Removes) > 0 || h.Held.Task != "" }

// NeverJoined reports whether a host failed before it belonged to the cluster.
func (h *Host) NeverJoined() bool {
	return h.Held != nil && h.State == progress.Failed && !h.Held.Changed && !h.hasDuties()
}

// IsEtcd reports whether a host has instructions with the role etcd.
func (h *Host) IsEtcd() bool {
	return h.Held != nil && slices.Contains(strings.Split(h.Held.Roles, ","), string(provisionv1.RoleEtcd))
}

// Busy describes what a host with instructions is doing. It returns "" if the host is up to date and working.
func (m *Member) Busy() string {
	switch {
	case !m.Connected:
		return "its agent is not connected"
	case m.State == progress.Up:
		return ""
	case m.State == progress.Failed:
		return "has failed: " + m.Message
	}
	return cmp.Or(m.Message, "carries out its instructions")
}

// Problem explains why a host has failed, and includes the end of the command output.
func (h *Host) Problem() string {
	text := protocol.Cut(h.Message, 256)
	if output := strings.TrimSpace(h.Output); output != "" {
		text += "; its last lines: " + output[max(0, len(output)-512):]
	}
	return strings.ToValidUTF8(text, "")
}

// Named returns the member with the given name, or nil if there is none.
func (r *Roster) Named(name string) *Member { return r.byName[name] }

// With returns the members with a role.
func (r *Roster) With(role provisionv1.HostRole) (all []*Member) {
	for _, m := range r.Stay {
		if m.Is(role) {
			all = append(all, m)
		}
	}
	return all
}

// Ordered returns the members in the order in which they join and are changed: the first host, other servers with etcd,
// other servers, and workers. The caller must not change the list.
func (r *Roster) Ordered() []*Member {
	if r.order != nil && r.orderedFor == r.Stored.First {
		return r.order
	}
	rank := func(m *Member) int {
		switch {
		case m.Name == r.Stored.First:
			return 0
		case m.Is(provisionv1.RoleEtcd):
			return 1
		case m.IsServer():
			return 2
		}
		return 3
	}
	all := slices.Clone(r.Stay)
	slices.SortStableFunc(all, func(a, b *Member) int { return cmp.Compare(rank(a), rank(b)) })
	r.order, r.orderedFor = all, r.Stored.First
	return all
}

// Servers returns all servers with instructions. It includes servers that are leaving the cluster, but not Hosts that
// are being deleted.
func (r *Roster) Servers() (all []*Member) {
	for _, m := range r.Ordered() {
		if m.IsServer() && m.Held != nil {
			all = append(all, m)
		}
	}
	for _, host := range r.Leave {
		if host.Held == nil || host.Leaving {
			continue
		}
		pool := &provisionv1.HostPool{}
		for role := range strings.SplitSeq(host.Held.Roles, ",") {
			pool.Roles = append(pool.Roles, provisionv1.HostRole(role))
		}
		if m := (&Member{host, pool}); m.IsServer() {
			all = append(all, m)
		}
	}
	return all
}

// Leaving returns the leaving host with the given name and UID. It returns nil if there is no such host or if the host
// is gone.
func (r *Roster) Leaving(name, uid string) *Host {
	for i := range r.Leave {
		if host := &r.Leave[i]; host.Name == name && host.UID == uid && !host.Gone {
			return host
		}
	}
	return nil
}

// Leavers returns the leaving hosts. Each of them is paired with a pool that has the same roles.
func (r *Roster) Leavers() (all []*Member) {
	for _, host := range r.Leave {
		for i := range r.Spec.Pools {
			if pool := &r.Spec.Pools[i]; host.Held != nil && host.Held.Roles == rolesOf(pool) {
				all = append(all, &Member{host, pool})
				break
			}
		}
	}
	return all
}

// Present reports whether a node's host exists.
func (r *Roster) Present(name string, node Node) bool {
	m := r.Named(name)
	return m != nil && m.UID == node.UID || r.Leaving(name, node.UID) != nil
}

// PresentNodes returns the names of the nodes whose hosts exist.
func (r *Roster) PresentNodes() (nodes []string) {
	for _, name := range slices.Sorted(maps.Keys(r.Stored.Nodes)) {
		if r.Present(name, r.Stored.Nodes[name]) {
			nodes = append(nodes, name)
		}
	}
	return nodes
}

// Holder returns the server with the given task, or nil if there is none.
func (r *Roster) Holder(id string) *Member {
	for _, m := range r.Stay {
		if m.Held != nil && m.Held.Task == id {
			return m
		}
	}
	return nil
}

// Behind returns a control plane server that is not running the version in the spec, or "" if there is none.
// Disconnected servers are ignored, because they serve no users.
func (r *Roster) Behind() string {
	for _, m := range r.Ordered() {
		if m.Is(provisionv1.RoleControlPlane) && m.Held != nil && m.Connected && (m.Held.Version != r.Spec.Version || !m.Working()) {
			return m.Name
		}
	}
	return ""
}

// NextJoin returns the sequence number of the next join.
func (in *Input) NextJoin() int64 {
	in.Stored.Joins = max(in.Stored.Joins+1, in.Now)
	return in.Stored.Joins
}

// AddNode records that a host is becoming a node.
func (in *Input) AddNode(m *Member) {
	if in.Stored.Nodes == nil {
		in.Stored.Nodes = map[string]Node{}
	}
	node := Node{UID: m.UID, Join: in.NextJoin(), Etcd: m.Is(provisionv1.RoleEtcd)}
	if len(m.NodeIPs) == 0 {
		node.Address = m.Address
	}
	in.Stored.Nodes[m.Name] = node
}

// HasData reports whether any member has the cluster's data.
func (r *Roster) HasData() bool {
	return slices.ContainsFunc(r.With(provisionv1.RoleEtcd), func(m *Member) bool {
		return m.Held != nil && !r.IsOld(&m.Host) && (m.Up() || !m.Held.Rejoins)
	})
}

// Lost reports whether no server has the cluster's data.
func (r *Roster) Lost() bool {
	for _, m := range r.Servers() {
		if m.Is(provisionv1.RoleEtcd) && !r.IsOld(&m.Host) {
			return false
		}
	}
	return true
}

// Etcd returns the number of etcd members, and the number of working ones. A host that no longer exists remains a
// member until it is removed from the cluster. A host that could not join is not a member.
func (r *Roster) Etcd() (members, work int) {
	for name, node := range r.Stored.Nodes {
		if !node.Etcd {
			continue
		}
		host := r.Leaving(name, node.UID)
		if m := r.Named(name); m != nil && m.UID == node.UID {
			host = &m.Host
		}
		if host != nil && (host.Held == nil && !node.Planned || host.NeverJoined() || r.IsOld(host)) {
			continue
		}
		members++
		if host != nil && host.Working() {
			work++
		}
	}
	return members, work
}

func quorum(members int) int { return members/2 + 1 }

// CanSpareOne reports whether an etcd member may be restarted. With three or more members, etcd must not lose quorum.
// With one or two members, every restart causes a loss of quorum. In that case, all members must be working before the
// restart.
func (r *Roster) CanSpareOne() bool {
	members, work := r.Etcd()
	if members <= 2 {
		return work >= members
	}
	return work-1 >= quorum(members)
}

// IsOld reports whether a host still has etcd data from before the last restore. The host must not be started with this
// data.
func (in *Input) IsOld(h *Host) bool {
	return h.IsEtcd() && h.Held.Epoch != in.Stored.Epoch && h.Held.Restores != in.Stored.Epoch
}

// WaitsToStart reports whether a server was stopped for a restore, or still has data from before the last restore.
func (r *Roster) WaitsToStart(m *Member) bool { return m.Held.Stopped != "" || r.IsOld(&m.Host) }

// Resumes reports whether a host was stopped for a restore that replaced no data.
func (r *Roster) Resumes(h *Host) bool {
	return h.Held != nil && h.Held.Stopped != "" && h.Held.Epoch == r.Stored.Epoch
}

// CanLose reports whether the remaining etcd members have quorum without a host, and returns the number of members.
func (r *Roster) CanLose(host *Host) (can bool, members int) {
	members, work := r.Etcd()
	can = work >= quorum(members)
	if host.Working() {
		work--
	}
	return can && work >= quorum(members-1), members
}
