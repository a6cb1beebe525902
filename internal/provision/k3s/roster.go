// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
)

// roster determines which hosts are in the cluster and whether they are healthy. It does not change anything. The
// roster is derived from the input's Stored, which changes with each step of a decision.
type roster struct {
	*Input
	// write creates the instructions for hosts. The roster uses the writer to find hosts with outdated instructions.
	write *writer
	// stay contains the members of the cluster. leave contains the claimed hosts that must leave the cluster. Both lists
	// are sorted by name.
	stay  []*member
	leave []Host
	// byName contains the members in the stay field.
	byName map[string]*member
	// order is the result of ordered while First in the input's Stored is orderedFor.
	order      []*member
	orderedFor string
	// free contains the names of free Hosts that the pools need. missing is the number of additional Hosts that the
	// pools need.
	free    []string
	missing int
}

// newRoster assigns the Hosts to pools.
func newRoster(w *writer) *roster {
	r := &roster{Input: w.Input, write: w, byName: map[string]*member{}}
	for i := range r.Spec.Pools {
		r.fill(&r.Spec.Pools[i])
	}
	slices.SortFunc(r.stay, func(a, b *member) int { return cmp.Compare(a.Name, b.Name) })
	slices.Sort(r.free)
	for _, m := range r.stay {
		r.byName[m.Name] = m
	}
	for _, host := range r.Hosts {
		if host.Taken && r.named(host.Name) == nil {
			r.leave = append(r.leave, host)
		}
	}
	return r
}

// fill finds the members of a pool, and the free Hosts that the pool needs.
func (r *roster) fill(pool *provisionv1.HostPool) {
	var have []*member
	var free []string
	for _, host := range r.Hosts {
		if r.poolOf(host) != pool || host.Leaving || r.isCleaned(&host) {
			continue
		}
		switch {
		case !host.Taken:
			free = append(free, host.Name)
		case host.Held == nil || host.Held.Roles == rolesOf(pool):
			have = append(have, &member{host, pool})
		}
	}
	want := len(have) + len(free)
	if pool.Replicas != nil {
		want = int(*pool.Replicas)
		r.missing += max(want-len(have)-len(free), 0)
	}
	slices.SortStableFunc(have, func(a, b *member) int { return cmp.Compare(r.worth(b), r.worth(a)) })
	r.stay = append(r.stay, have[:min(want, len(have))]...)
	r.free = append(r.free, free[:min(max(want-len(have), 0), len(free))]...)
}

// worth returns the rank of a host. A pool with too many hosts keeps the hosts with the highest ranks.
func (r *roster) worth(m *member) int {
	switch {
	case r.Stored.Restore != nil && r.Stored.Restore.By == m.Name && r.Stored.Restore.UID == m.UID:
		return 4
	case m.working() && m.Name == r.Stored.First:
		return 3
	case m.working():
		return 2
	case m.Held != nil && m.Connected:
		return 1
	}
	return 0
}

// named returns the member with the given name, or nil if there is none.
func (r *roster) named(name string) *member { return r.byName[name] }

func (r *roster) with(role provisionv1.HostRole) (all []*member) {
	for _, m := range r.stay {
		if m.is(role) {
			all = append(all, m)
		}
	}
	return all
}

// ordered returns the members in the order in which they join and are changed: the first host, other servers with etcd,
// other servers, and workers. The caller must not change the list.
func (r *roster) ordered() []*member {
	if r.order != nil && r.orderedFor == r.Stored.First {
		return r.order
	}
	rank := func(m *member) int {
		switch {
		case m.Name == r.Stored.First:
			return 0
		case m.is(provisionv1.RoleEtcd):
			return 1
		case m.server():
			return 2
		}
		return 3
	}
	all := slices.Clone(r.stay)
	slices.SortStableFunc(all, func(a, b *member) int { return cmp.Compare(rank(a), rank(b)) })
	r.order, r.orderedFor = all, r.Stored.First
	return all
}

// leaving returns the leaving host with the given name and UID. It returns nil if there is no such host or if the host
// is gone.
func (r *roster) leaving(name, uid string) *Host {
	for i := range r.leave {
		if host := &r.leave[i]; host.Name == name && host.UID == uid && !host.Gone {
			return host
		}
	}
	return nil
}

// leavers returns the leaving hosts. Each of them is paired with a pool that has the same roles.
func (r *roster) leavers() (all []*member) {
	for _, host := range r.leave {
		for i := range r.Spec.Pools {
			if pool := &r.Spec.Pools[i]; host.Held != nil && host.Held.Roles == rolesOf(pool) {
				all = append(all, &member{host, pool})
				break
			}
		}
	}
	return all
}

// servers returns all servers with instructions. It includes servers that are leaving the cluster, but not Hosts that
// are being deleted.
func (r *roster) servers() (all []*member) {
	for _, m := range r.ordered() {
		if m.server() && m.Held != nil {
			all = append(all, m)
		}
	}
	for _, host := range r.leave {
		if host.Held == nil || host.Leaving {
			continue
		}
		pool := &provisionv1.HostPool{}
		for role := range strings.SplitSeq(host.Held.Roles, ",") {
			pool.Roles = append(pool.Roles, provisionv1.HostRole(role))
		}
		if m := (&member{host, pool}); m.server() {
			all = append(all, m)
		}
	}
	return all
}

// present reports whether a node's host exists.
func (r *roster) present(name string, node Node) bool {
	m := r.named(name)
	return m != nil && m.UID == node.UID || r.leaving(name, node.UID) != nil
}

// presentNodes returns the names of the nodes whose hosts exist.
func (r *roster) presentNodes() (nodes []string) {
	for _, name := range slices.Sorted(maps.Keys(r.Stored.Nodes)) {
		if r.present(name, r.Stored.Nodes[name]) {
			nodes = append(nodes, name)
		}
	}
	return nodes
}

// isCleaned reports whether a host is being cleaned because its instructions were removed. The host's node must be
// removed before the host can join again.
func (r *roster) isCleaned(host *Host) bool {
	node := r.Stored.Nodes[host.Name]
	return host.Taken && host.Held == nil && node.Planned && node.UID == host.UID && r.Stored.Begun
}
