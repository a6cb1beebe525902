// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/tunnel"
)

// ErrNoLeader is returned when none of a member's connected agents claims to be the leader.
var ErrNoLeader = errors.New("none of the agents leads")

// maxAsked is the maximum number of times that a request for the leader is sent.
const maxAsked = 8

// Leading returns a transport to the leading agent of a member, wherever its tunnel ends. The transport first tries
// the agent whose report claims leadership. If that agent responds with 421 or cannot be reached, the transport tries
// the other agents one by one.
//
// Leading returns ErrNotConnected for a member that is not connected, and ErrClones if two clusters share the
// member's identity. Requests fail with ErrUndecided while the hub does not yet know whether two clusters share the
// identity, because a clone must not receive data that is meant for the member. Requests that have a body must have
// GetBody set.
func (t *Transports) Leading(name types.NamespacedName) (http.RoundTripper, error) {
	t.table.mu.Lock()
	defer t.table.mu.Unlock()
	if err := t.table.servesLocked(name); err != nil {
		return nil, err
	}
	return leading{transports: t, name: name}, nil
}

// leading sends each request to the agent that is the member's leader when the request is sent.
type leading struct {
	transports *Transports
	name       types.NamespacedName
}

// RoundTrip implements http.RoundTripper.
func (l leading) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer r.Body.Close()
	}
	cause := ErrNotConnected
	var tried []string
	for range maxAsked {
		next, kin, err := l.transports.leader(l.name, tried)
		if errors.Is(err, errTried) || errors.Is(err, ErrNotConnected) {
			break // the cause of the last attempt is more informative
		} else if err != nil {
			return nil, err
		}
		attempt := r.Clone(r.Context())
		if r.GetBody != nil {
			body, err := r.GetBody()
			if err != nil {
				return nil, fmt.Errorf("read the body of a request to cluster %s again: %w", l.name, err)
			}
			attempt.Body = body
		}
		response, err := next.carrier.RoundTrip(attempt)
		switch {
		case errors.Is(err, tunnel.ErrNotProcessed):
			tried, cause = append(tried, next.id), fmt.Errorf("%w: %w", ErrNotConnected, err)
		case err == nil && response.StatusCode == http.StatusMisdirectedRequest:
			_ = response.Body.Close() // only the status matters
			tried, cause = append(tried, kin...), ErrNoLeader
		default:
			return response, err
		}
	}
	return nil, cause
}

// errTried is returned when a request has been sent to all of a member's agents.
var errTried = errors.New("all agents have been tried")

// leader returns the best route to the agent that claims to be the leader. If no agent makes this claim, leader returns
// a route to any agent. kin contains the IDs of all tunnels from that agent's process.
func (t *Transports) leader(name types.NamespacedName, tried []string) (found route, kin []string, err error) {
	t.table.mu.Lock()
	defer t.table.mu.Unlock()
	if err := t.table.servesLocked(name); err != nil {
		return route{}, nil, err
	}
	m := t.table.members[name]
	if m.undecided() {
		return route{}, nil, ErrUndecided
	}
	routes := m.routes()
	ok := false
	if instance, known := m.leadingInstance(routes); known {
		found, ok = best(of(routes, instance), tried)
	}
	if !ok {
		found, ok = best(slices.Clone(routes), tried)
	}
	if !ok {
		return route{}, nil, errTried
	}
	for _, other := range of(routes, found.instance) {
		kin = append(kin, other.id)
	}
	return found, kin, nil
}

// of returns the routes to one agent process.
func of(routes []route, instance string) []route {
	return slices.DeleteFunc(slices.Clone(routes), func(other route) bool { return other.instance != instance })
}

// leadingInstance returns the process that claims to be the leader through its newest tunnel. table.mu must be held.
func (m *member) leadingInstance(routes []route) (instance string, known bool) {
	epochs := map[int64]bool{}
	for _, s := range m.sessions {
		if s.report != nil && s.report.Leader {
			epochs[s.peer.Epoch] = true
		}
	}
	for _, other := range m.remote {
		if other.record.Report != nil && other.record.Report.Leader {
			epochs[other.record.Reported] = true
		}
	}
	var newest int64
	for _, candidate := range routes {
		if epochs[candidate.epoch] && candidate.epoch > newest {
			instance, known, newest = candidate.instance, true, candidate.epoch
		}
	}
	return instance, known
}

// LeaderPatience is how long a connected member may be without a leading agent before the hub reports the problem. If a
// leader is killed, a new one takes over within 19 s.
const LeaderPatience = time.Minute

// vacancy is a period in which replicas of a member's agent send reports, but none of them is the leader. It is guarded
// by table.mu.
type vacancy struct {
	since time.Time
	timer *time.Timer
	long  bool // set once the vacancy has lasted for LeaderPatience
}

func (m *member) occupied() {
	if m.vacancy != nil {
		m.vacancy.timer.Stop()
		m.vacancy = nil
	}
}

// awaitLeaderLocked records whether one of a member's agents is the leader, and notifies listeners when none of them
// has been the leader for LeaderPatience.
func (l *leaders) awaitLeaderLocked(name types.NamespacedName) {
	m := l.table.members[name]
	if m == nil || isHost(name) {
		return
	}
	switch vacant := !l.table.closed && m.leaders() == 0 && m.reported(); {
	case !vacant:
		m.occupied()
	case m.vacancy == nil:
		v := &vacancy{since: l.table.now()}
		m.vacancy = v
		v.timer = time.AfterFunc(LeaderPatience, func() {
			l.table.mu.Lock()
			v.long = true
			lasted := m.vacancy == v
			l.table.mu.Unlock()
			if lasted {
				l.notices.notify(name)
			}
		})
	}
}

// reported reports whether a replica of the agent is connected and has sent a report. Node agents do not count.
// table.mu must be held.
func (m *member) reported() bool {
	replica := func(p Peer) bool { return !p.NodeAgent }
	return slices.ContainsFunc(m.sessions, func(s *session) bool { return s.report != nil && replica(s.peer) }) ||
		slices.ContainsFunc(m.remote, func(r remote) bool {
			return r.record.Report != nil && slices.ContainsFunc(r.record.Tunnels, replica)
		})
}
