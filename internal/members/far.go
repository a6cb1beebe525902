// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/drover-dev/drover/internal/await"
)

// remoteStream is the stream from a leading agent whose tunnel ends at another replica. It is guarded by table.mu.
type remoteStream struct {
	tunnel string // ID
	stop   context.CancelFunc
	stream *stream
	wake   chan struct{} // signals that a new attempt may succeed
}

// Delays before a stream through another replica is reopened.
const (
	firstFarPause = 100 * time.Millisecond
	maxFarPause   = 30 * time.Second
)

// followFarLocked opens or closes a member's stream through another replica, depending on where the member's tunnels
// end.
func (s *Followers) followFarLocked(name types.NamespacedName) {
	m := s.table.members[name]
	if m == nil {
		return
	}
	var leads route
	if s.following.leading && !s.table.closed && len(s.following.subjects) > 0 && !isHost(name) {
		leads = m.farLeader()
	}
	if m.far != nil && m.far.tunnel == leads.id {
		await.Signal(m.far.wake)
		return
	}
	if m.far != nil {
		m.far.stop()
		m.far = nil
	}
	if leads.id == "" {
		return
	}
	ctx, stop := context.WithCancel(s.table.ctx)
	f := &remoteStream{tunnel: leads.id, stop: stop, stream: newStream(s, name, m.offers), wake: make(chan struct{}, 1)}
	m.far = f
	s.table.work.Go(func() {
		defer stop()
		s.followFar(ctx, f)
	})
}

// farLeader returns the route to the agent that claims to be the leader. If this agent's tunnel does not end at another
// replica, farLeader returns an empty route. table.mu must be held.
func (m *member) farLeader() route {
	if len(m.remote) == 0 {
		return route{}
	}
	routes := m.routes()
	instance, known := m.leadingInstance(routes)
	if !known {
		return route{}
	}
	found, _ := best(of(routes, instance), nil)
	if !found.hop {
		return route{}
	}
	return found
}

// followFar reads the lines that an agent sends through another replica. It returns when ctx is done.
func (s *Followers) followFar(ctx context.Context, f *remoteStream) {
	for failures := 0; ctx.Err() == nil; failures++ {
		err := f.stream.read(ctx, func() (streamRequest, error) {
			s.table.mu.Lock()
			defer s.table.mu.Unlock()
			m := s.table.members[f.stream.name]
			if m == nil {
				return streamRequest{}, ErrNotConnected
			}
			leads := m.farLeader()
			if leads.id != f.tunnel {
				return streamRequest{}, ErrNotConnected
			}
			return streamRequest{agent: leads.carrier, subjects: s.following.subjects}, nil
		})
		if errors.Is(err, ErrReportEnded) {
			failures = 0 // an agent that gives up its tunnel ends the stream in this way
		}
		s.table.log.V(1).Info("stream through another replica ended", "cluster", f.stream.name, "cause", errorText(err))
		if fast := (tooFast{}); errors.As(err, &fast) {
			s.admission.suspend(f.stream.name, fast.what)
			await.Time(ctx, tooFastPause)
			continue
		}
		await.Wake(ctx, f.wake, wait.Jitter(min(firstFarPause<<min(failures, 20), maxFarPause)/2, 1))
	}
}
