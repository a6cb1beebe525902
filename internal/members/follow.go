// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/protocol"
)

// Follower is told what agents report on one subject beside their report. Its functions must not block.
type Follower[E any] interface {
	// Synced is called with everything that a member's agent has.
	Synced(member types.NamespacedName, all []E)
	// Event is called with each change after that.
	Event(member types.NamespacedName, event E)
	// Stopped is called when changes may be missed from now on, until Synced is called again.
	Stopped(member types.NamespacedName)
}

// Followers reads what agents report, and hands what the leader follows of all members to its followers.
type Followers struct {
	table     *table
	admission *Admission
	following following
}

// following is what the leader follows of all members.
type following struct {
	leading  bool     // table.mu guards it and subjects
	subjects []string // that have a follower
	sets     topic[*protocol.SetEvent]
	plans    topic[*protocol.PlanEvent]
}

// topic is a subject with its follower. Of a member with several tunnels, the stream that reported everything last
// speaks for the member.
type topic[E any] struct {
	mu       sync.Mutex // guards what follows, and is held while the follower is called
	follower Follower[E]
	sources  map[types.NamespacedName]*stream
}

func (t *topic[E]) follow(f Follower[E]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.follower, t.sources = f, map[types.NamespacedName]*stream{}
}

func (t *topic[E]) synced(s *stream, all []E) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sources[s.name] = s
	t.follower.Synced(s.name, all)
}

func (t *topic[E]) event(s *stream, event E) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sources[s.name] == s {
		t.follower.Event(s.name, event)
	}
}

// stopped reports whether the stream spoke for its member.
func (t *topic[E]) stopped(s *stream) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sources[s.name] != s {
		return false
	}
	delete(t.sources, s.name)
	t.follower.Stopped(s.name)
	return true
}

// FollowSets registers what is told of sets while Lead runs. It is called before Lead, as is FollowPlans.
func (s *Followers) FollowSets(f Follower[*protocol.SetEvent]) {
	s.following.sets.follow(f)
	s.follow(protocol.SubjectSets)
}

// FollowPlans registers what is told of plans while Lead runs.
func (s *Followers) FollowPlans(f Follower[*protocol.PlanEvent]) {
	s.following.plans.follow(f)
	s.follow(protocol.SubjectPlans)
}

func (s *Followers) follow(subject string) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	if !slices.Contains(s.following.subjects, subject) {
		s.following.subjects = append(s.following.subjects, subject)
	}
}

// Lead follows sets and plans of all members until ctx ends. Only the replica that leads calls it.
func (s *Followers) Lead(ctx context.Context) error {
	s.table.mu.Lock()
	s.following.leading = true
	for name, m := range s.table.members {
		m.restartLocked()
		s.followFarLocked(name)
	}
	s.table.mu.Unlock()
	<-ctx.Done()
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	s.following.leading = false
	for name := range s.table.members {
		s.followFarLocked(name)
	}
	return nil
}

// subjectsLocked returns what is asked of an agent of that member whose tunnel ends here. Hosts have neither sets nor
// plans of Clusters.
func (s *Followers) subjectsLocked(name types.NamespacedName) []string {
	subjects := []string{protocol.SubjectReport}
	if !s.following.leading || isHost(name) {
		return subjects
	}
	return append(subjects, s.following.subjects...)
}
