// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package roster

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// Roster holds the members of a cluster. It is derived from the stored state, which changes with each step of a
// decision.
type Roster struct {
	Input
	// Stay contains the members of the cluster. Leave contains the claimed hosts that must leave the cluster. Both lists
	// are sorted by name.
	Stay  []*Member
	Leave []Host
	// byName contains the members in the Stay field.
	byName map[string]*Member
	// order is the result of Ordered while First in the stored state is orderedFor.
	order      []*Member
	orderedFor string
	// Free contains the names of free Hosts that the pools need. Missing is the number of additional Hosts that the
	// pools need.
	Free    []string
	Missing int
}

// New assigns the Hosts to pools. It does not change the input.
func New(in Input) *Roster {
	in.Stored.Nodes = maps.Clone(in.Stored.Nodes)
	in.Hosts = slices.Clone(in.Hosts)
	slices.SortFunc(in.Hosts, func(a, b Host) int { return cmp.Compare(a.Name, b.Name) })
	r := &Roster{Input: in, byName: map[string]*Member{}}
	r.pinAddresses()
	r.assumeUnreadable()
	for i := range r.Spec.Pools {
		r.fill(&r.Spec.Pools[i])
	}
	slices.SortFunc(r.Stay, func(a, b *Member) int { return cmp.Compare(a.Name, b.Name) })
	slices.Sort(r.Free)
	for _, m := range r.Stay {
		r.byName[m.Name] = m
	}
	for _, host := range r.Hosts {
		if host.Taken && r.Named(host.Name) == nil {
			r.Leave = append(r.Leave, host)
		}
	}
	return r
}

// pinAddresses keeps the address that each machine reported when it became a node. Hosts send the cluster's token to
// the addresses of servers, so later reports from a machine must not change its address. Only spec.internalAddress of
// the Host can change the address.
func (r *Roster) pinAddresses() {
	for i := range r.Hosts {
		host := &r.Hosts[i]
		node, isNode := r.Stored.Nodes[host.Name]
		switch {
		case !isNode || node.UID != host.UID || len(host.NodeIPs) > 0:
		case node.Address != "":
			host.Address = node.Address
		default:
			node.Address = host.Address
			r.Stored.Nodes[host.Name] = node
		}
	}
}

// assumeUnreadable treats a host with unreadable instructions as a disconnected member of its pool. The host keeps its
// role in the cluster. Other hosts wait for it as they would for a disconnected host.
func (r *Roster) assumeUnreadable() {
	for i := range r.Hosts {
		host := &r.Hosts[i]
		if host.Held == nil || !host.Held.Unreadable {
			continue
		}
		host.Connected, host.State = false, progress.None
		host.Held = &Held{Part: Part{Epoch: r.Stored.Epoch}, Unreadable: true}
		if pool := r.poolOf(*host); pool != nil {
			host.Held.Roles = rolesOf(pool)
		}
	}
}

// poolOf returns the first pool whose selector matches a host, or nil if there is none.
func (r *Roster) poolOf(host Host) *provisionv1.HostPool {
	for i, selector := range r.Spec.Selectors {
		if selector.Matches(labels.Set(host.Labels)) {
			return &r.Spec.Pools[i]
		}
	}
	return nil
}

// fill finds the members of a pool, and the free Hosts that the pool needs.
func (r *Roster) fill(pool *provisionv1.HostPool) {
	var have []*Member
	var free []string
	for _, host := range r.Hosts {
		if r.poolOf(host) != pool || host.Leaving || r.isCleaned(&host) {
			continue
		}
		switch {
		case !host.Taken:
			free = append(free, host.Name)
		case host.Held == nil || host.Held.Roles == rolesOf(pool):
			have = append(have, &Member{host, pool})
		}
	}
	want := len(have) + len(free)
	if pool.Replicas != nil {
		want = int(*pool.Replicas)
		r.Missing += max(want-len(have)-len(free), 0)
	}
	slices.SortStableFunc(have, func(a, b *Member) int { return cmp.Compare(r.worth(b), r.worth(a)) })
	r.Stay = append(r.Stay, have[:min(want, len(have))]...)
	r.Free = append(r.Free, free[:min(max(want-len(have), 0), len(free))]...)
}

// worth returns the rank of a host. A pool with too many hosts keeps the hosts with the highest ranks.
func (r *Roster) worth(m *Member) int {
	switch {
	case r.Stored.Restore != nil && r.Stored.Restore.By == m.Name && r.Stored.Restore.UID == m.UID:
		return 4
	case m.Working() && m.Name == r.Stored.First:
		return 3
	case m.Working():
		return 2
	case m.Held != nil && m.Connected:
		return 1
	}
	return 0
}

// isCleaned reports whether a host is being cleaned because its instructions were removed. The host's node must be
// removed before the host can join again.
func (r *Roster) isCleaned(host *Host) bool {
	node := r.Stored.Nodes[host.Name]
	return host.Taken && host.Held == nil && node.Planned && node.UID == host.UID && r.Stored.Begun
}
