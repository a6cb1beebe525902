// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/drover-dev/drover/internal/provision/progress"
)

// removal is a node that must be removed from the cluster.
type removal struct {
	Node string
	Join int64
	// host is the leaving host, or nil if it is gone.
	host *Host
}

// id returns the ID of the instruction that removes the node. The ID changes each time the node joins again.
func (r removal) id() string { return "remove-" + digest(r.Node, r.Join) }

// leaves finds the nodes that must be removed from the cluster, and returns the removals that are possible now. It also
// releases the hosts whose nodes have been removed. A node must be removed before its host is cleaned. Otherwise, etcd
// would count a member that no longer exists.
func (d *decision) leaves() []removal {
	operator := d.operator()
	told, failed := d.told()
	var all []removal
	for _, name := range slices.Sorted(maps.Keys(d.Stored.Nodes)) {
		node := d.Stored.Nodes[name]
		m, id := d.named(name), ""
		if len(told) > 0 {
			id = removal{Node: name, Join: node.Join}.id()
		}
		stays := m != nil && m.UID == node.UID
		// The node needs a new ID for its next removal. If the host was about to leave but stays, the removal with the
		// old ID may already have run, and would not run again. A failed removal also requires a new ID to run again.
		if stays && told.Has(id) || failed.Has(id) {
			node.Join = d.nextJoin()
		}
		node.Planned = node.Planned || stays && m.Held != nil
		d.Stored.Nodes[name] = node
		if stays {
			continue
		}
		r := removal{Node: name, Join: node.Join, host: d.leaving(name, node.UID)}
		if operator != nil && operator.up() && slices.Contains(operator.Held.Removes, r.id()) {
			delete(d.Stored.Nodes, name)
			continue
		}
		all = append(all, r)
	}
	for _, host := range d.leave {
		if node, joined := d.Stored.Nodes[host.Name]; !joined || node.UID != host.UID || host.Gone {
			d.release(host)
		}
	}
	d.out.stuck = operator == nil && slices.ContainsFunc(all, func(r removal) bool { return d.Stored.Nodes[r.Node].Etcd })
	return d.removable(all, operator)
}

// told returns the IDs of all removals that are in the hosts' instructions or may have failed.
func (r *roster) told() (all, failed sets.Set[string]) {
	all, failed = sets.New[string](), sets.New[string]()
	for _, h := range r.Hosts {
		if h.Held == nil {
			continue
		}
		all.Insert(h.Held.Removes...)
		if h.Connected && h.State == progress.Failed {
			failed.Insert(h.Held.Removes...)
		}
	}
	return all, failed
}

// removable returns the removals that are possible now. etcd members are removed one at a time, and only while the
// remaining members have quorum.
func (d *decision) removable(all []removal, operator *member) (now []removal) {
	members, work := d.etcd()
	begun := func(r removal) bool { return operator != nil && slices.Contains(operator.Held.Removes, r.id()) }
	etcd := func(r removal) bool { return r.host != nil && d.Stored.Nodes[r.Node].Etcd }
	one := slices.ContainsFunc(all, func(r removal) bool { return etcd(r) && begun(r) })
	for _, r := range all {
		why := ""
		switch {
		case operator == nil:
			why = "a server that is up, to remove its node from the cluster"
		case begun(r): // the removal has already started
		case r.host != nil && r.host.Held != nil && (r.host.State == progress.None || r.host.State == progress.Running):
			why = "what runs on it to end: it would join again"
		case r.host != nil && d.resumes(r.host):
			why = "it to be started again, since etcd counts it"
		case !etcd(r) || r.host.Held == nil: // etcd no longer counts a host that has been cleaned
		case one || slices.ContainsFunc(now, etcd):
			why = "another host: servers with etcd leave one at a time"
		case r.host.neverJoined(), d.isOld(r.host): // the host is not an etcd member
		case work < quorum(members) || work-count(r.host.working()) < quorum(members-1):
			why = fmt.Sprintf("more of the %d servers with etcd to be up: it would have no quorum", members)
		}
		if why == "" {
			now = append(now, r)
			why = "its node to be removed from the cluster"
		}
		if r.host != nil {
			d.out.Waiting[r.Node] = "leaves, and waits for " + why
		}
	}
	return now
}
