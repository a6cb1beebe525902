// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"net/http"
	"slices"
)

// route is an open tunnel from a member. The tunnel ends at this replica or at another one.
type route struct {
	id        string
	instance  string // the agent's instance name; may be empty
	epoch     int64
	nodeAgent bool              // set for a node agent
	hop       bool              // set if the tunnel ends at another replica
	carrier   http.RoundTripper // nil if the replica that holds the tunnel cannot be reached
}

// best returns the best route whose ID is not in tried, and false if there is none. tried lists the routes through
// which the request could not be sent.
//
// Only the newest tunnel of each agent process is considered, because the agent will soon close its older tunnels.
// Tunnels from pods of the agent's Deployment are preferred to tunnels from node agents. After that, tunnels that end
// at this replica are preferred, and then newer tunnels.
func best(routes []route, tried []string) (route, bool) {
	usable := slices.DeleteFunc(routes, func(r route) bool { return r.carrier == nil || slices.Contains(tried, r.id) })
	var found *route
	for i := range usable {
		candidate := &usable[i]
		stale := slices.ContainsFunc(usable, func(other route) bool {
			return other.instance == candidate.instance && other.newer(*candidate)
		})
		if !stale && (found == nil || candidate.better(*found)) {
			found = candidate
		}
	}
	if found == nil {
		return route{}, false
	}
	return *found, true
}

// newer orders tunnels by epoch, and then by ID, because replicas may accept two tunnels in the same nanosecond.
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

// routes returns all routes to a member, including routes through replicas that cannot be reached. table.mu must be
// held.
func (m *member) routes() []route {
	routes := make([]route, 0, 4)
	for _, s := range m.sessions {
		routes = append(routes, route{
			id: s.peer.ID, instance: s.peer.Instance, epoch: s.peer.Epoch, nodeAgent: s.peer.NodeAgent, carrier: s,
		})
	}
	for _, other := range m.remote {
		for _, p := range other.record.Tunnels {
			routes = append(routes, route{
				id: p.ID, instance: p.Instance, epoch: p.Epoch, nodeAgent: p.NodeAgent, hop: true, carrier: other.carrier(p),
			})
		}
	}
	return routes
}
