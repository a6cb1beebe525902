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

// Follower receives one kind of event that agents send in addition to their reports. Its methods must not block.
type Follower[E any] interface {
	// Synced is called with the complete state of a member's agent.
	Synced(member types.NamespacedName, all []E)
	// Event is called with each change that follows the last call to Synced.
	Event(member types.NamespacedName, event E)
	// Stopped is called when the member is no longer followed. Changes may be missed until the next call to Synced.
	Stopped(member types.NamespacedName)
}

// Followers reads the events that agents send. On the leading replica, it passes each event to the Follower for the
// event's subject.
type Followers struct {
	table     *table
	admission *Admission
	following following
}

// following holds the subjects that the leading replica follows for all members.
type following struct {
	leading  bool     // leading and subjects are guarded by table.mu
	subjects []string // subjects with a follower
	sets     topic[*protocol.SetEvent]
	plans    topic[*protocol.PlanEvent]
}

// topic is a subject and its follower. If a member has several streams, only the stream that most recently sent the
// complete state counts.
type topic[E any] struct {
	mu       sync.Mutex // guards the following fields; held while the follower is called
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

// stopped records that a stream has ended, and reports whether this stream counted for its member.
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

// FollowSets registers the follower of sets. The follower is called while Lead is running. FollowSets and FollowPlans
// must be called before Lead.
func (s *Followers) FollowSets(f Follower[*protocol.SetEvent]) {
	s.following.sets.follow(f)
	s.follow(protocol.SubjectSets)
}

// FollowPlans registers the follower of plans. The follower is called while Lead is running.
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

// Lead follows the sets and plans of all members until ctx is done. Only the hub's leading replica calls it.
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

// subjectsLocked returns the subjects to request from an agent whose tunnel ends at this replica. Host agents send
// neither sets nor Plans.
func (s *Followers) subjectsLocked(name types.NamespacedName) []string {
	subjects := []string{protocol.SubjectReport}
	if !s.following.leading || isHost(name) {
		return subjects
	}
	return append(subjects, s.following.subjects...)
}
