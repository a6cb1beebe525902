// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
)

// Pauses between attempts.
const (
	firstPause = 100 * time.Millisecond
	maxPause   = 30 * time.Second
)

// Bounds on what an agent reports: it is kept in memory, it causes reconciles of Plans, and the agent may be malicious.
const (
	// maxOffer bounds the report of all plans, in bytes.
	maxOffer = 4 << 20
	// maxUnfollowed bounds the states that are kept of plans that do not follow the member.
	maxUnfollowed = 64
	// eventRate is the number of changes that are read each second, eventBurst that at once.
	eventRate, eventBurst = 20, 500
	// maxAhead is how long an agent may exceed that.
	maxAhead = 10 * time.Second
	// tooFastPause is the pause after that.
	tooFastPause = time.Minute
)

// usualEvent is the size of the buffer that a stream keeps, in bytes. It grows for a larger event.
const usualEvent = 1024

// openLocked opens the stream on which a member's agent reports its plans.
func (l *Listener) openLocked(m *member, peers []members.Peer) {
	ctx, cancel := context.WithCancel(l.ctx)
	s := &stream{cancel: cancel, wake: make(chan struct{}, 1), pace: members.NewPace(eventRate, eventBurst, maxAhead)}
	for _, p := range peers {
		s.peers = append(s.peers, p.ID)
	}
	m.stream, m.silent = s, time.Now()
	l.tasks.Go(func() {
		defer cancel()
		l.listen(ctx, m, s)
	})
}

// listen reads an agent's reports until ctx ends or the agent responds that it has no such stream.
func (l *Listener) listen(ctx context.Context, m *member, s *stream) {
	for failures := 0; ; failures++ {
		err := l.read(ctx, m, s)
		l.mu.Lock()
		synced, mine := s.synced, m.stream == s
		s.synced, s.offer = false, nil
		if synced {
			m.silent = time.Now()
		}
		unknown := members.IsStatus(err, http.StatusNotFound)
		if unknown && mine {
			m.refuses, m.stream = v1.ReasonAgentTooOld, nil // its next report or connection opens it again
		}
		plans := m.allLocked()
		l.mu.Unlock()
		if synced || unknown {
			l.notify(plans)
		}
		if unknown || ctx.Err() != nil {
			return
		}
		if synced {
			failures = 0 // a stream ends normally when the agent no longer leads or its tunnel moved
		}
		l.Log.V(1).Info("stream of plans ended", "cluster", m.name, "cause", fmt.Sprint(err))
		if !l.rest(ctx, m, s, err, failures) {
			return
		}
	}
}

// rest waits with backoff before the stream is opened again, and reports whether ctx is still active. A wake does not shorten the pause after
// ErrTooFast.
func (l *Listener) rest(ctx context.Context, m *member, s *stream, cause error, failures int) bool {
	if errors.Is(cause, members.ErrTooFast) {
		l.Members.TooFast(m.name, "changes of plans")
		return pause(ctx, nil, tooFastPause)
	}
	whole := maxPause
	if failures < 20 {
		whole = min(l.Pause<<failures, maxPause)
	}
	return pause(ctx, s.wake, wait.Jitter(whole/2, 1))
}

// pause waits for d or a wake, and reports whether ctx is still active.
func pause(ctx context.Context, wake <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-wake:
		return true
	case <-timer.C:
		return true
	}
}

func (s *stream) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// read reads one stream to its end.
func (l *Listener) read(ctx context.Context, m *member, s *stream) error {
	agent, err := l.Members.Leading(m.name)
	if err != nil {
		return err
	}
	resp, err := members.Ask(ctx, agent, http.MethodGet, protocol.PathPlans, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	l.mu.Lock()
	s.hold, s.offer = "", map[string]*v1.PlanStatus{}
	l.mu.Unlock()
	lines := members.NewLines(resp.Body, usualEvent, protocol.MaxPlanEvent)
	for left, synced := maxOffer, false; lines.Scan(); {
		var event protocol.PlanEvent
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return errors.New("a line is not an event") // the cause quotes the line
		}
		if left, synced = left-len(lines.Bytes()), synced || event.Synced; left < 0 && !synced {
			return fmt.Errorf("the agent offers more than %d bytes", maxOffer)
		}
		if event.Bound(); synced {
			if err := s.pace.Wait(ctx); err != nil {
				return err
			}
		}
		l.notify(l.take(m, s, &event))
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.EOF
}

// take applies an event, and returns the plans that it concerns.
func (l *Listener) take(m *member, s *stream, event *protocol.PlanEvent) []types.NamespacedName {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m.stream != s {
		return nil
	}
	switch {
	case event.Synced:
		s.synced, m.hold, m.states, s.offer = true, s.hold, s.offer, nil
		return m.allLocked()
	case event.Hold != nil && !s.synced:
		s.hold = event.Hold.Reason
	case event.Hold != nil && event.Hold.Reason != m.hold:
		m.hold = event.Hold.Reason
		return m.allLocked()
	case event.State != nil && !s.synced:
		m.keepLocked(s.offer, event.State)
	case event.State != nil && m.keepLocked(m.states, event.State):
		return m.concernedLocked(event.State.Name)
	case event.Removed != "" && !s.synced:
		delete(s.offer, event.Removed)
	case event.Removed != "":
		delete(m.states, event.Removed)
		return m.concernedLocked(event.Removed)
	}
	return nil
}

// keepLocked keeps a state, and reports whether it changed. A few states are kept of plans that do not follow the member yet.
func (m *member) keepLocked(states map[string]*v1.PlanStatus, state *protocol.PlanState) bool {
	was, known := states[state.Name]
	if _, follows := m.plans[state.Name]; !follows && !known && len(states) >= len(m.plans)+maxUnfollowed {
		return false
	}
	status := &state.Status
	status.Conditions = slices.DeleteFunc(status.Conditions, func(c metav1.Condition) bool { return c.Type != v1.ConditionComplete })
	states[state.Name] = status
	return was == nil || !reflect.DeepEqual(was, status)
}

func (m *member) concernedLocked(plan string) []types.NamespacedName {
	if _, follows := m.plans[plan]; !follows {
		return nil
	}
	return []types.NamespacedName{{Namespace: m.name.Namespace, Name: plan}}
}

// current reports whether all tunnels from when the stream was opened still exist. One of them leads to the agent; when that is closed, the
// stream must be opened again.
func (s *stream) current(peers []members.Peer) bool {
	return !slices.ContainsFunc(s.peers, func(id string) bool {
		return !slices.ContainsFunc(peers, func(p members.Peer) bool { return p.ID == id })
	})
}
