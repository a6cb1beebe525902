// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"maps"
	"slices"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
)

// begin selects the host that starts the cluster, and reports whether hosts can be given instructions. The selection
// must be stored before the selected host gets instructions.
func (d *decision) begin() bool {
	s, etcd := &d.Stored, d.with(provisionv1.RoleEtcd)
	first := d.named(s.First)
	if first != nil && first.up() && first.Held.Join == "" {
		s.Begun = true
	}
	if s.Begun {
		return d.hasData() || d.stop()
	}
	// There is no cluster yet, so no nodes need to be removed.
	for _, host := range d.leave {
		d.release(host)
	}
	maps.DeleteFunc(s.Nodes, func(name string, n Node) bool { m := d.named(name); return m == nil || m.UID != n.UID })
	switch {
	case first != nil:
		return true
	case len(d.leave) > 0:
		d.waitAll("the hosts that leave to be clean, before one begins the cluster")
		return false
	}
	slices.SortStableFunc(etcd, func(a, b *member) int {
		return count(b.is(provisionv1.RoleControlPlane)) - count(a.is(provisionv1.RoleControlPlane))
	})
	if i := slices.IndexFunc(etcd, func(m *member) bool { return m.Connected && m.Address != "" }); i >= 0 {
		s.First = etcd[i].Name
	}
	d.waitAll("a connected host with the role etcd that reports an address, to begin the cluster")
	return false
}

// stop is called when none of the remaining hosts has the cluster's data. It releases hosts that are being deleted, and
// makes no other changes. It always returns false.
func (d *decision) stop() bool {
	why := "a decision: no host has the cluster's data any more"
	d.out.Unselected = slices.ContainsFunc(d.leave, func(h Host) bool { return isEtcd(&h) && !h.Leaving && !d.isOld(&h) })
	if d.out.Lost = !d.out.Unselected; d.out.Unselected {
		why = "a decision: no pool selects a host that has the cluster's data"
	}
	d.out.Take = nil
	d.waitAll(why)
	for _, host := range d.leave {
		d.out.Waiting[host.Name] = "waits for " + why
		if host.Leaving {
			d.release(host)
		}
	}
	return false
}
