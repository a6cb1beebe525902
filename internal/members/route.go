// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"net/http"
	"slices"
)

// route is one way to a member: a tunnel that is open somewhere.
type route struct {
	id        string
	instance  string // of the agent; the empty one is one, too
	epoch     int64
	nodeAgent bool              // whether the agent is a node agent
	hop       bool              // whether it ends at another replica
	carrier   http.RoundTripper // nil if that replica cannot be reached
}

// best returns the route for a request that could not be sent on the routes tried before; false if there is none.
//
// Of the tunnels of one process of the agent only the newest counts, wherever it ends: the agent is about to give up
// the others. Among the processes, those of the agent's Deployment go before node agents, then one whose tunnel ends
// here, then the one that came last.
func best(routes []route, tried []string) (route, bool) {
	usable := slices.DeleteFunc(routes, func(r route) bool { return r.carrier == nil || slices.Contains(tried, r.id) })
	var found *route
	for i := range usable {
		candidate := &usable[i]
		stale := slices.ContainsFunc(usable, func(other route) bool { return other.instance == candidate.instance && other.newer(*candidate) })
		if !stale && (found == nil || candidate.better(*found)) {
			found = candidate
		}
	}
	if found == nil {
		return route{}, false
	}
	return *found, true
}

// newer orders tunnels. Replicas may accept two in the same nanosecond.
func (r route) newer(than route) bool {
	return r.epoch > than.epoch || r.epoch == than.epoch && r.id > than.id
}

func (r route) better(than route) bool {
	if r.nodeAgent != than.nodeAgent {
		return than.nodeAgent
	}
	if r.hop != than.hop {
		return than.hop
	}
	return r.newer(than)
}

// routes returns all ways to a member, also through replicas that cannot be reached. table.mu is held.
func (m *member) routes() []route {
	routes := make([]route, 0, 4)
	for _, s := range m.sessions {
		routes = append(routes, route{id: s.peer.ID, instance: s.peer.Instance, epoch: s.peer.Epoch, nodeAgent: s.peer.NodeAgent, carrier: s})
	}
	for _, other := range m.remote {
		for _, p := range other.record.Tunnels {
			routes = append(routes, route{id: p.ID, instance: p.Instance, epoch: p.Epoch, nodeAgent: p.NodeAgent, hop: true, carrier: other.carrier(p)})
		}
	}
	return routes
}
