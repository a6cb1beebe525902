// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
)

// roster is who is in the cluster, and answers what a decision asks of that. It changes nothing.
type roster struct {
	*Input
	// stored is what the decision stores.
	stored *Stored
	// stay are the members, and leave the taken hosts that are to be none, both by name.
	stay  []*member
	leave []Host
	// byName are those of stay.
	byName map[string]*member
}

// named returns the host that stays by that name, nil for none.
func (r *roster) named(name string) *member { return r.byName[name] }

func (r *roster) with(role provisionv1.HostRole) (all []*member) {
	for _, m := range r.stay {
		if m.is(role) {
			all = append(all, m)
		}
	}
	return all
}

// ordered are the members as they join and change: the first host, other servers with etcd, other servers, workers.
func (r *roster) ordered() []*member {
	rank := func(m *member) int {
		switch {
		case m.Name == r.stored.First:
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
	return all
}

// leaving returns the host that leaves by that name, nil if it is gone.
func (r *roster) leaving(name, uid string) *Host {
	for i := range r.leave {
		if host := &r.leave[i]; host.Name == name && host.UID == uid && !host.Gone {
			return host
		}
	}
	return nil
}

// holder is the server that was given a task, nil for none.
func (r *roster) holder(id string) *member {
	for _, m := range r.stay {
		if m.Held != nil && m.Held.Task == id {
			return m
		}
	}
	return nil
}

// leavers are the hosts that leave, in the pool that has their roles.
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

// servers are those that have a plan, with those that leave and are not being deleted.
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

// serverAway says which server is not connected: it would go on with the old data. It is empty if all are.
func (r *roster) serverAway() string {
	for _, m := range r.servers() {
		if !m.Connected {
			return fmt.Sprintf("the agent of host %s, which is not connected: a server that is not stopped would go on with the old data; if its machine is gone, delete the Host; to go on without the restore, set spec.cancel", m.Name)
		}
	}
	return ""
}

// present reports whether the host of a node is there.
func (r *roster) present(name string, node Node) bool {
	m := r.named(name)
	return m != nil && m.UID == node.UID || r.leaving(name, node.UID) != nil
}

// poolOf returns the first pool that selects a host, nil for none.
func (r *roster) poolOf(host Host) *provisionv1.HostPool {
	for i, selector := range r.Spec.Selectors {
		if selector.Matches(labels.Set(host.Labels)) {
			return &r.Spec.Pools[i]
		}
	}
	return nil
}

// assume has a host whose plan is not known count as one of its pool that is away: it keeps its part in the cluster,
// and no other waits for it longer than for a lost one.
func (r *roster) assume(host *Host) {
	host.Connected, host.Progress = false, None
	host.Held = &Held{Part: Part{Epoch: r.Stored.Epoch}, Unreadable: true}
	if pool := r.poolOf(*host); pool != nil {
		host.Held.Roles = rolesOf(pool)
	}
}

// unplanned reports whether a host's plan was taken away, by which it is cleaned: its node is to be removed before it
// joins again.
func (r *roster) unplanned(host *Host) bool {
	node := r.Stored.Nodes[host.Name]
	return host.Taken && host.Held == nil && node.Planned && node.UID == host.UID && r.Stored.Begun
}

// hasData reports whether a host stays that has the cluster's data.
func (r *roster) hasData() bool {
	return slices.ContainsFunc(r.with(provisionv1.RoleEtcd), func(m *member) bool { return m.Held != nil && !r.isOld(&m.Host) && (m.up() || !m.Held.Rejoins) })
}

// lost reports whether no host of the cluster has its data.
func (r *roster) lost() bool {
	for _, m := range r.servers() {
		if m.is(provisionv1.RoleEtcd) && !r.isOld(&m.Host) {
			return false
		}
	}
	return true
}

// waitsToStart reports whether a server was stopped for a restore, or has data that one has replaced elsewhere.
func (r *roster) waitsToStart(m *member) bool { return m.Held.Stopped != "" || r.isOld(&m.Host) }

// resumes reports whether a host was stopped for a restore that has replaced nothing.
func (r *roster) resumes(h *Host) bool {
	return h.Held != nil && h.Held.Stopped != "" && h.Held.Epoch == r.Stored.Epoch
}

// etcd counts the members of etcd, and those of them that work. A host that was removed from no cluster, and is gone,
// is a member. One that could not join is none.
func (r *roster) etcd() (members, work int) {
	for name, node := range r.stored.Nodes {
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

// restorer is the host that can restore what is wanted: that whose disk has the file, or any server with etcd. It is
// nil if there is none.
func (r *roster) restorer(wanted Restore) *member {
	var best *member
	for _, m := range r.ordered() {
		switch {
		case !m.is(provisionv1.RoleEtcd) || m.Address == "" || wanted.Host != "" && m.Name != wanted.Host:
		case wanted.Host != "":
			return m
		case m.Connected && (best == nil || best.Held == nil && m.Held != nil):
			best = m
		}
	}
	return best
}
