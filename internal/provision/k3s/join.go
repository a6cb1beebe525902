// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"fmt"
	"maps"
	"slices"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/k3s/decision"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
)

// begin selects the host that starts the cluster, and reports whether hosts can be given instructions. The selection
// must be stored before the selected host gets instructions.
func begin(d *decision.Draft) bool {
	s := &d.Roster.Stored
	first := d.Roster.Named(s.First)
	if first != nil && first.Up() && first.Held.Join == "" {
		s.Begun = true
	}
	if s.Begun {
		return d.Roster.HasData() || stop(d)
	}
	// There is no cluster yet, so no nodes need to be removed.
	for _, host := range d.Roster.Leave {
		d.Release(host)
	}
	maps.DeleteFunc(s.Nodes, func(name string, n roster.Node) bool { m := d.Roster.Named(name); return m == nil || m.UID != n.UID })
	switch {
	case first != nil:
		return true
	case len(d.Roster.Leave) > 0:
		d.WaitAll("the hosts that leave to be clean, before one begins the cluster")
		return false
	}
	var best *roster.Member
	for _, m := range d.Roster.With(provisionv1.RoleEtcd) {
		better := best == nil || !best.Is(provisionv1.RoleControlPlane) && m.Is(provisionv1.RoleControlPlane)
		if better && m.Connected && m.Address != "" {
			best, s.First = m, m.Name
		}
	}
	d.WaitAll("a connected host with the role etcd that reports an address, to begin the cluster")
	return false
}

// stop is called when none of the remaining hosts has the cluster's data. It releases hosts that are being deleted, and
// makes no other changes. It always returns false.
func stop(d *decision.Draft) bool {
	why := "a decision: no host has the cluster's data any more"
	d.Out.Unselected = slices.ContainsFunc(d.Roster.Leave, func(h roster.Host) bool { return h.IsEtcd() && !h.Leaving && !d.Roster.IsOld(&h) })
	if d.Out.Lost = !d.Out.Unselected; d.Out.Unselected {
		why = "a decision: no pool selects a host that has the cluster's data"
	}
	d.Out.Take = nil
	d.WaitAll(why)
	for _, host := range d.Roster.Leave {
		d.Out.Waiting[host.Name] = "waits for " + why
		if host.Leaving {
			d.Release(host)
		}
	}
	return false
}

// join gives hosts their first instructions.
func join(d *decision.Draft) error {
	joining := d.Joining
	for _, m := range d.Roster.With(provisionv1.RoleEtcd) {
		if m.Held != nil && m.Connected && m.State.Busy() {
			joining = m.Name
		}
	}
	for _, m := range d.Roster.Ordered() {
		if m.Held != nil {
			continue
		}
		url, why := wayIn(d, m)
		known, isKnown := d.Roster.Stored.Nodes[m.Name]
		switch {
		case !m.Connected:
			why = "its agent, which is not connected"
		case m.IsServer() && d.Task != nil && d.Task.Calm:
			why = fmt.Sprintf("server %s to %s", d.Task.Host, d.Task.What)
		case isKnown && known.UID != m.UID:
			why = "the node of the Host that had its name to be removed from the cluster"
		case why == "" && url != "" && m.Is(provisionv1.RoleEtcd) && joining != "":
			why = fmt.Sprintf("host %s: servers with etcd join one at a time", joining)
		}
		if why != "" {
			d.Out.Waiting[m.Name] = "waits for " + why
			continue
		}
		if !isKnown {
			d.Roster.AddNode(m)
		}
		if m.Is(provisionv1.RoleEtcd) {
			joining = m.Name
		}
		d.Out.Waiting[m.Name] = "is given its instructions"
		if err := d.Give(m, url); err != nil {
			return err
		}
	}
	return nil
}
