// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"fmt"
	"maps"
	"slices"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/k3s/decision"
	"github.com/drover-dev/drover/internal/provision/k3s/distribution"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// leaves finds the nodes that must be removed from the cluster, and returns the removals that are possible now. It also
// releases the hosts whose nodes have been removed. A node must be removed before its host is cleaned. Otherwise, etcd
// would count a member that no longer exists.
func leaves(d *decision.Draft) []distribution.Removal {
	by := operator(d)
	var told, failed []string // the IDs of all removals that are in the hosts' instructions or may have failed
	for _, h := range d.Roster.Hosts {
		if h.Held != nil {
			told = append(told, h.Held.Removes...)
		}
		if h.Held != nil && h.Connected && h.State == progress.Failed {
			failed = append(failed, h.Held.Removes...)
		}
	}
	var all []distribution.Removal
	for _, name := range slices.Sorted(maps.Keys(d.Roster.Stored.Nodes)) {
		node := d.Roster.Stored.Nodes[name]
		m, id := d.Roster.Named(name), ""
		if len(told) > 0 {
			id = distribution.Removal{Node: name, Join: node.Join}.ID()
		}
		stays := m != nil && m.UID == node.UID
		// The node needs a new ID for its next removal. If the host was about to leave but stays, the removal with the
		// old ID may already have run, and would not run again. A failed removal also requires a new ID to run again.
		if stays && slices.Contains(told, id) || slices.Contains(failed, id) {
			node.Join = d.Roster.NextJoin()
		}
		node.Planned = node.Planned || stays && m.Held != nil
		d.Roster.Stored.Nodes[name] = node
		if stays {
			continue
		}
		r := distribution.Removal{Node: name, Join: node.Join, Host: d.Roster.Leaving(name, node.UID)}
		if by != nil && by.Up() && slices.Contains(by.Held.Removes, r.ID()) {
			delete(d.Roster.Stored.Nodes, name)
			continue
		}
		all = append(all, r)
	}
	for _, host := range d.Roster.Leave {
		if node, joined := d.Roster.Stored.Nodes[host.Name]; !joined || node.UID != host.UID || host.Gone {
			d.Release(host)
		}
	}
	d.Out.Stuck = by == nil && slices.ContainsFunc(all, func(r distribution.Removal) bool { return d.Roster.Stored.Nodes[r.Node].Etcd })
	return removable(d, all, by)
}

// removable returns the removals that are possible now. etcd members are removed one at a time, and only while the
// remaining members have quorum.
func removable(d *decision.Draft, all []distribution.Removal, operator *roster.Member) (now []distribution.Removal) {
	begun := func(r distribution.Removal) bool {
		return operator != nil && slices.Contains(operator.Held.Removes, r.ID())
	}
	etcd := func(r distribution.Removal) bool { return r.Host != nil && d.Roster.Stored.Nodes[r.Node].Etcd }
	one := slices.ContainsFunc(all, func(r distribution.Removal) bool { return etcd(r) && begun(r) })
	for _, r := range all {
		why := ""
		switch {
		case operator == nil:
			why = "a server that is up, to remove its node from the cluster"
		case begun(r): // the removal has already started
		case r.Host != nil && r.Host.Held != nil && (r.Host.State == progress.None || r.Host.State == progress.Running):
			why = "what runs on it to end: it would join again"
		case r.Host != nil && d.Roster.Resumes(r.Host):
			why = "it to be started again, since etcd counts it"
		case !etcd(r) || r.Host.Held == nil: // etcd no longer counts a host that has been cleaned
		case one || slices.ContainsFunc(now, etcd):
			why = "another host: servers with etcd leave one at a time"
		case r.Host.NeverJoined(), d.Roster.IsOld(r.Host): // the host is not an etcd member
		default:
			if can, members := d.Roster.CanLose(r.Host); !can {
				why = fmt.Sprintf("more of the %d servers with etcd to be up: it would have no quorum", members)
			}
		}
		if why == "" {
			now = append(now, r)
			why = "its node to be removed from the cluster"
		}
		if r.Host != nil {
			d.Out.Waiting[r.Node] = "leaves, and waits for " + why
		}
	}
	return now
}

// operator returns the server that removes nodes, or nil if there is none. The server must be working and up to date. A
// server that has already started to remove nodes is preferred.
func operator(d *decision.Draft) *roster.Member {
	var best *roster.Member
	for _, m := range d.Roster.Ordered() {
		if !m.Is(provisionv1.RoleControlPlane) || !m.Working() || !d.IsCurrent(m) {
			continue
		}
		if best == nil || len(best.Held.Removes) == 0 && len(m.Held.Removes) > 0 {
			best = m
		}
	}
	return best
}
