// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
)

// removals finds the nodes that are to be removed from the cluster, and gives back the hosts of those that were. A node is removed before its host is cleaned:
// etcd would count a member that is gone.
func (d *decision) removals() []removal {
	operator := d.operator()
	told, failed := d.told()
	var all []removal
	for _, name := range slices.Sorted(maps.Keys(d.out.Stored.Nodes)) {
		node := d.out.Stored.Nodes[name]
		m, id := d.named(name), ""
		if len(told) > 0 {
			id = removal{Node: name, Join: node.Join}.id()
		}
		stays := m != nil && m.UID == node.UID
		// One that was to leave, and stays: a removal that has run already would remove it from nothing later. And what has failed runs again by another ID only.
		if stays && told.Has(id) || failed.Has(id) {
			node.Join = d.nextJoin()
		}
		node.Planned = node.Planned || stays && m.Held != nil
		d.out.Stored.Nodes[name] = node
		if stays {
			continue
		}
		r := removal{Node: name, Join: node.Join, host: d.leaving(name, node.UID)}
		if operator != nil && operator.up() && slices.Contains(operator.Held.Removes, r.id()) {
			delete(d.out.Stored.Nodes, name)
			continue
		}
		all = append(all, r)
	}
	for _, host := range d.leave {
		if node, joined := d.out.Stored.Nodes[host.Name]; !joined || node.UID != host.UID || host.Gone {
			d.release(host)
		}
	}
	d.out.stuck = operator == nil && slices.ContainsFunc(all, func(r removal) bool { return d.out.Stored.Nodes[r.Node].Etcd })
	return d.removable(all, operator)
}

// told returns the IDs of the removals that hosts have in their plans, and of those that may have failed.
func (d *decision) told() (all, failed sets.Set[string]) {
	all, failed = sets.New[string](), sets.New[string]()
	for _, h := range d.Hosts {
		if h.Held == nil {
			continue
		}
		all.Insert(h.Held.Removes...)
		if h.Connected && h.Progress == Failed {
			failed.Insert(h.Held.Removes...)
		}
	}
	return all, failed
}

// removable are the removals that may be now: of hosts that have a part in etcd one at a time, and only while those that stay have a quorum.
func (d *decision) removable(all []removal, operator *member) (now []removal) {
	members, work := d.etcd()
	begun := func(r removal) bool { return operator != nil && slices.Contains(operator.Held.Removes, r.id()) }
	etcd := func(r removal) bool { return r.host != nil && d.out.Stored.Nodes[r.Node].Etcd }
	one := slices.ContainsFunc(all, func(r removal) bool { return etcd(r) && begun(r) })
	for _, r := range all {
		why := ""
		switch {
		case operator == nil:
			why = "a server that is up, to remove its node from the cluster"
		case begun(r): // it goes on
		case r.host != nil && r.host.Held != nil && (r.host.Progress == None || r.host.Progress == Running):
			why = "what runs on it to end: it would join again"
		case r.host != nil && d.resumes(r.host):
			why = "it to be started again, since etcd counts it"
		case !etcd(r) || r.host.Held == nil: // what has been cleaned is dead for etcd
		case one || slices.ContainsFunc(now, etcd):
			why = "another host: servers with etcd leave one at a time"
		case r.host.neverJoined(), d.isOld(r.host): // it is no member
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

// operator is the server that removes nodes: one that works and is as it is to be. One that has begun goes on.
func (d *decision) operator() *member {
	var best *member
	for _, m := range d.ordered() {
		if !m.is(provisionv1.RoleControlPlane) || !m.working() {
			continue
		}
		if !d.current(m) {
			continue
		}
		if best == nil || len(best.Held.Removes) == 0 && len(m.Held.Removes) > 0 {
			best = m
		}
	}
	return best
}

// change gives hosts that have joined the plan that they are to have now, if they may change now.
func (d *decision) change(removes []removal) error {
	d.decideTask(len(removes))
	if err := d.resume(removes); err != nil {
		return err
	}
	operator, changing := d.operator(), d.changing()
	unavailable := d.unavailable()
	for _, m := range d.ordered() {
		if m.Held == nil {
			continue
		}
		if d.waitsToStart(m) {
			if err := d.startAgain(m); err != nil {
				return err
			}
			continue
		}
		var mine []removal
		if operator != nil && m.Name == operator.Name {
			mine = removes
		}
		plan, err := d.render(m, m.Held.Join, mine)
		if err == nil && plan.Start != m.Held.Start {
			plan, err = d.render(m, d.rejoin(m), mine)
		}
		if err != nil {
			return err
		}
		d.out.Waiting[m.Name] = busy(m)
		if d.task != nil && m.Name == d.task.host && m.up() {
			d.out.Waiting[m.Name] = "is told to " + d.task.what
		}
		plan.Changed = plan.Start != m.Held.Start || m.Held.Changed
		if plan.Start == m.Held.Start {
			d.out.Instructions[m.Name] = plan
			continue
		}
		why := d.mayChange(m, changing, unavailable)
		if why != "" {
			d.out.Waiting[m.Name] = "waits for " + why + ", to be changed"
			continue
		}
		d.out.Instructions[m.Name] = plan
		d.out.Waiting[m.Name] = "is changed"
		if m.server() {
			changing = m.Name
		} else {
			unavailable++
		}
	}
	return nil
}

// rejoin returns the URL by which a host that is started again anyway finds the cluster: another one if the server that it joined by is gone. One that is part of
// etcd finds the others by that.
func (d *decision) rejoin(m *member) string {
	known := func(s *member) bool { return s.Address != "" && d.joinURL(s) == m.Held.Join }
	if m.is(provisionv1.RoleEtcd) || slices.ContainsFunc(d.stay, known) {
		return m.Held.Join
	}
	url, _ := d.wayIn(m)
	return cmp.Or(url, m.Held.Join)
}

// mayChange says what a host waits for before it is started again, "" if it need not wait. One that does not work has nothing to lose.
func (d *decision) mayChange(m *member, changing string, unavailable int) (why string) {
	members, work := d.etcd()
	switch {
	case !m.Connected:
		return "its agent, which is not connected"
	case m.server() && d.task != nil && d.task.calm:
		return fmt.Sprintf("server %s to %s", d.task.host, d.task.what)
	case m.server() && changing != "" && changing != m.Name:
		return fmt.Sprintf("server %s: one is changed at a time; if it is away for good, delete its Host", changing)
	case !m.working():
		return ""
	case m.server() && d.broken(m) != "":
		return fmt.Sprintf("server %s: this change has broken it, and is not done to another before that is mended, or spec is changed back", d.broken(m))
	case m.is(provisionv1.RoleControlPlane) && d.out.stuck: // a moment without a quorum is better than none that can remove what is dead
		return ""
	case m.is(provisionv1.RoleEtcd) && members > 2 && work-1 < quorum(members), m.is(provisionv1.RoleEtcd) && members <= 2 && work < members:
		return "the other servers with etcd to be up: without it etcd would have no quorum"
	case m.server():
		return ""
	}
	if m.Held.Version != d.Spec.Version {
		if server := d.behind(); server != "" {
			return fmt.Sprintf("server %s to have version %s: no worker is newer than a server", server, d.Spec.Version)
		}
	}
	if unavailable >= int(max(d.Spec.MaxUnavailable, 1)) {
		return fmt.Sprintf("other workers: at most %d are changed at a time", max(d.Spec.MaxUnavailable, 1))
	}
	return ""
}

// broken is a server that the change which another is to have has broken, "" for none. One that is to leave is a warning, too.
func (d *decision) broken(other *member) string {
	for _, m := range slices.Concat(d.ordered(), d.leavers()) {
		if m.server() && m.Name != other.Name && m.Held != nil && m.Held.Changed && m.Connected && m.Progress == Failed && d.current(m) {
			return m.Name
		}
	}
	return ""
}

// changing is a server that is being started, "" for none. One that has failed holds up no other by that, nor one that is away, unless it went away in the change.
func (d *decision) changing() string {
	for _, m := range d.ordered() {
		if m.server() && m.Held != nil && m.Progress.busy() && (m.Connected || m.Held.Changed && d.current(m)) {
			return m.Name
		}
	}
	return ""
}

// unavailable counts workers that are being changed, and those that this change has broken or that went away in it: it is not to break them all. Others that do
// not work hold up none.
func (d *decision) unavailable() (n int) {
	for _, m := range d.stay {
		if m.server() || m.Held == nil || !m.Held.Changed || m.up() {
			continue
		}
		if (m.Connected || m.Progress.busy()) && d.current(m) {
			n++
		}
	}
	return n
}

// behind is a server of the control plane that is not up with the version of spec, "" for none. One that is away serves no one.
func (d *decision) behind() string {
	for _, m := range d.ordered() {
		if m.is(provisionv1.RoleControlPlane) && m.Held != nil && m.Connected && (m.Held.Version != d.Spec.Version || !m.working()) {
			return m.Name
		}
	}
	return ""
}

// busy says what a host that has a plan is busy with, "" if it is as it is to be.
func busy(m *member) string {
	switch {
	case !m.Connected:
		return "its agent is not connected"
	case m.Progress == Up:
		return ""
	case m.Progress == Failed:
		return "has failed: " + m.Detail
	}
	return cmp.Or(m.Detail, "carries out its plan")
}

// neverJoined reports whether a host has failed before it was part of the cluster.
func (h *Host) neverJoined() bool {
	return h.Held != nil && h.Progress == Failed && !h.Held.Changed && len(h.Held.Removes) == 0 && h.Held.Task == ""
}

// working reports whether a host does its part in the cluster. One that removes a node or has a task does: it is not started again for that.
func (h *Host) working() bool {
	return h.Connected && h.Held != nil && h.Held.Stopped == "" && (h.Progress == Up || (len(h.Held.Removes) > 0 || h.Held.Task != "") && h.Progress != Failed)
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

func isEtcd(host *Host) bool {
	return host.Held != nil && slices.Contains(strings.Split(host.Held.Roles, ","), string(provisionv1.RoleEtcd))
}

func quorum(members int) int { return members/2 + 1 }
