// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"fmt"
	"slices"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
)

// join gives hosts their first instructions.
func (d *decision) join() error {
	joining := d.joining
	for _, m := range d.with(provisionv1.RoleEtcd) {
		if m.Held != nil && m.Connected && m.State.Busy() {
			joining = m.Name
		}
	}
	for _, m := range d.ordered() {
		if m.Held != nil {
			continue
		}
		url, why := d.wayIn(m)
		known, isKnown := d.Stored.Nodes[m.Name]
		switch {
		case !m.Connected:
			why = "its agent, which is not connected"
		case m.server() && d.task != nil && d.task.calm:
			why = fmt.Sprintf("server %s to %s", d.task.host, d.task.what)
		case isKnown && known.UID != m.UID:
			why = "the node of the Host that had its name to be removed from the cluster"
		case why == "" && url != "" && m.is(provisionv1.RoleEtcd) && joining != "":
			why = fmt.Sprintf("host %s: servers with etcd join one at a time", joining)
		}
		if why != "" {
			d.out.Waiting[m.Name] = "waits for " + why
			continue
		}
		if !isKnown {
			d.addNode(m)
		}
		if m.is(provisionv1.RoleEtcd) {
			joining = m.Name
		}
		d.out.Waiting[m.Name] = "is given its instructions"
		if err := d.give(m, url); err != nil {
			return err
		}
	}
	return nil
}

// nextJoin returns the sequence number of the next join.
func (d *decision) nextJoin() int64 {
	d.Stored.Joins = max(d.Stored.Joins+1, d.Now)
	return d.Stored.Joins
}

// addNode records that a host is becoming a node.
func (d *decision) addNode(m *member) {
	if d.Stored.Nodes == nil {
		d.Stored.Nodes = map[string]Node{}
	}
	node := Node{UID: m.UID, Join: d.nextJoin(), Etcd: m.is(provisionv1.RoleEtcd)}
	if len(m.NodeIPs) == 0 {
		node.Address = m.Address
	}
	d.Stored.Nodes[m.Name] = node
}

// wayIn returns the URL that a host uses to join, or the reason why the host must wait. The URL is empty for the host
// that starts the cluster.
func (r *roster) wayIn(m *member) (url, why string) {
	if m.Name == r.Stored.First && !r.Stored.Begun {
		return "", ""
	}
	role := provisionv1.RoleEtcd
	if !m.server() { // the kubelet registers with an API server
		role = provisionv1.RoleControlPlane
	}
	if !r.Stored.Begun {
		return "", fmt.Sprintf("host %s, which begins the cluster", r.Stored.First)
	}
	up := slices.DeleteFunc(r.with(role), func(s *member) bool { return !s.up() || s.Address == "" })
	if len(up) == 0 {
		return "", fmt.Sprintf("a host with the role %s that is up", role)
	}
	if first := slices.IndexFunc(up, func(s *member) bool { return s.Name == r.Stored.First }); first > 0 {
		up[0] = up[first]
	}
	return r.write.joinURL(up[0]), ""
}
