// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/await"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/untrusted"
)

// ErrClones is returned when two clusters share the identity of one member. The hub then serves neither of the two
// clusters.
var ErrClones = errors.New("two clusters have the identity of this member")

// ErrUndecided is returned when two of a member's agents claim to be the leader, and the hub does not know yet whether
// these agents belong to the same cluster.
var ErrUndecided = errors.New(
	"two agents report that they lead, and the hub does not know yet whether they belong to the same cluster")

const (
	// examineEvery is the interval at which the hub queries the agents of a member whose identity may be shared by two
	// clusters.
	examineEvery = 5 * time.Second
	// askTimeout is the timeout for one query. A suspended process accepts the query but never responds.
	askTimeout = 5 * time.Second
	// cloneGone is how long all agents must agree before the member counts as one cluster again. It equals the duration
	// of the agents' Lease, so an agent of the other cluster has time to reconnect after a restart.
	cloneGone = 15 * time.Second
	// doubtLimit is how long an unresponsive leader can delay the delivery of sets to its successor. If the leader's
	// process hangs, its tunnel is closed sooner.
	doubtLimit = 30 * time.Second
	// maxExamined is the maximum number of agents that are queried.
	maxExamined = 8
)

// Clones describes two clusters that share the identity of one member, or two machines that share the identity of one
// host.
type Clones struct {
	// Agents are the instance names of two agent processes, one in each cluster, in sorted order.
	Agents []string
}

// examination holds the result of querying a member's agents for their leadership terms. It is guarded by table.mu.
type examination struct {
	found *Clones   // nil as long as there is no proof of two clusters
	last  time.Time // when the agents last disagreed
	start time.Time
	// decided reports whether all agents have responded in one round of queries, or whether doubtLimit has passed.
	decided bool
}

// sighting is the leadership term that one agent process has seen.
type sighting struct {
	instance string
	term     string // empty if the process saw no term or did not respond
}

// proveClones returns two processes that cannot belong to the same cluster, given the sightings in chronological order.
// A term that has ended never returns. Therefore, if a process saw a different term between two sightings of the same
// term, it belongs to a different cluster. This is true regardless of clock differences and pauses.
func proveClones(seen []sighting) (a, b string, proven bool) {
	for i, first := range seen {
		for j := i + 1; j < len(seen); j++ {
			between := seen[j]
			again := slices.ContainsFunc(seen[j+1:], func(s sighting) bool { return s.term == first.term })
			if first.term != "" && between.term != "" && between.term != first.term && again {
				return first.instance, between.instance, true
			}
		}
	}
	return "", "", false
}

// agree reports whether all processes saw the same term. A single process agrees with itself, even if it saw no term.
func agree(seen []sighting) bool {
	for _, s := range seen {
		if s.instance != seen[0].instance && (s.term == "" || s.term != seen[0].term) {
			return false
		}
	}
	return true
}

// answered reports whether each process has reported a term.
func answered(seen []sighting) bool {
	return !slices.ContainsFunc(seen, func(s sighting) bool { return s.term == "" })
}

// undecided reports whether two agents claim to be the leader and may belong to different clusters. table.mu must be
// held.
func (m *member) undecided() bool {
	return m.leaders() > 1 && (m.examination == nil || !m.examination.decided)
}

// after returns the state of the examination after one more round of queries.
func (e examination) after(seen []sighting, now time.Time) examination {
	a, b, proven := proveClones(seen)
	connected := func(instance string) bool {
		return slices.ContainsFunc(seen, func(s sighting) bool { return s.instance == instance })
	}
	e.decided = e.decided || answered(seen) || now.Sub(e.start) >= doubtLimit
	switch {
	case proven:
		e.last = now
		// While both agents stay connected, their names are kept so that the status does not change.
		if e.found == nil || !connected(e.found.Agents[0]) || !connected(e.found.Agents[1]) {
			e.found = &Clones{Agents: []string{min(a, b), max(a, b)}}
		}
	case e.found == nil:
	case !agree(seen):
		e.last = now
	case now.Sub(e.last) >= cloneGone:
		e.found = nil
	}
	return e
}

// leaders counts the agent processes that claim to be the leader. It stops counting at two. table.mu must be held.
func (m *member) leaders() int {
	count, first := 0, ""
	add := func(p Peer) {
		switch {
		case !p.Leads:
		case count == 0:
			count, first = 1, p.Instance
		case p.Instance != first:
			count = 2
		}
	}
	for _, s := range m.sessions {
		add(s.known())
	}
	for _, other := range m.remote {
		for _, p := range other.record.Tunnels {
			add(p)
		}
	}
	return count
}

// leaders tracks which of a member's agents claim to be the leader. Normally, exactly one agent does. If two agents do,
// leaders determines whether two clusters share the member's identity. If no agent has claimed to be the leader for
// LeaderPatience, leaders notifies the listeners.
type leaders struct {
	table   *table
	notices *Notices
}

// examineLocked starts querying a member's agents when two of them claim to be the leader. Otherwise, it does nothing.
func (l *leaders) examineLocked(name types.NamespacedName) {
	m := l.table.members[name]
	if m == nil || m.examination != nil || l.table.closed || m.leaders() < 2 {
		return
	}
	m.examination = &examination{start: l.table.now()}
	l.table.work.Go(func() {
		for l.table.ctx.Err() == nil && l.examine(name, m) {
			await.Time(l.table.ctx, examineEvery)
		}
	})
}

// examine runs one round of queries and reports whether another round is needed.
func (l *leaders) examine(name types.NamespacedName, m *member) bool {
	seen := l.askTerms(name)
	l.table.mu.Lock()
	if l.table.members[name] != m { // Forget was called in the meantime
		l.table.mu.Unlock()
		return false
	}
	before := m.examination.found
	after := m.examination.after(seen, l.table.now())
	if m.examination = &after; after.found == nil && m.leaders() < 2 {
		m.examination = nil
	}
	again := m.examination != nil
	l.table.mu.Unlock()
	if before != after.found {
		l.table.log.Info("examined whether the member is one cluster", "cluster", name, "one", after.found == nil)
		l.notices.notify(name)
	}
	return again
}

// askTerms queries each of a member's agent processes twice for its current term. It completes the first round of
// queries before it starts the second. It skips processes of older versions, because they do not support the query.
func (l *leaders) askTerms(name types.NamespacedName) []sighting {
	ways := l.instances(name)
	var seen []sighting
	for range 2 {
		ways = slices.DeleteFunc(ways, func(way route) bool {
			if way.carrier == nil {
				seen = append(seen, sighting{instance: way.instance})
				return false
			}
			term, err := l.askTerm(way)
			unknown := IsStatus(err, http.StatusNotFound)
			if !unknown {
				seen = append(seen, sighting{way.instance, term})
			}
			return unknown
		})
	}
	return seen
}

func (l *leaders) askTerm(way route) (string, error) {
	ctx, cancel := context.WithTimeout(l.table.ctx, askTimeout)
	defer cancel()
	resp, err := Ask(ctx, way.carrier, http.MethodGet, protocol.PathTerm, nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var term protocol.Term
	if err := untrusted.ReadJSON(resp.Body, &term, untrusted.Small().WithBytes(2*protocol.MaxTerm)); err != nil {
		return "", err
	}
	return protocol.Cut(term.Term, protocol.MaxTerm), nil
}

// instances returns the newest route to each of a member's agent processes, sorted by instance name.
func (l *leaders) instances(name types.NamespacedName) []route {
	l.table.mu.Lock()
	defer l.table.mu.Unlock()
	m := l.table.members[name]
	if m == nil {
		return nil
	}
	routes := m.routes()
	slices.SortFunc(routes, func(a, b route) int {
		return cmp.Or(cmp.Compare(a.instance, b.instance), cmp.Compare(b.epoch, a.epoch))
	})
	routes = slices.CompactFunc(routes, func(a, b route) bool { return a.instance == b.instance })
	return routes[:min(len(routes), maxExamined)]
}

func (m *member) clones() *Clones {
	if m.examination == nil {
		return nil
	}
	return m.examination.found
}
