// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
)

// Pauses between attempts.
const (
	firstPause = 100 * time.Millisecond
	maxPause   = 5 * time.Minute
	// maxStreamPause is the longest pause before an agent that is connected is asked again for what it has.
	maxStreamPause = 30 * time.Second
)

// Bounds on what an agent tells. Its word is kept in memory and has hub objects reconciled, and it may be anybody's.
const (
	// maxOffer is how long all that is there may be, in bytes.
	maxOffer = 16 << 20
	// maxStrangers is of how many sets that nobody wants more is kept, beyond those that were offered.
	maxStrangers = 1024
	// eventRate is how many changes a second are read on, eventBurst how many at once.
	eventRate, eventBurst = 200, 5000
	// maxAhead is how long an agent may go on sending more.
	maxAhead = 10 * time.Second
	// tooFastPause is how long one that did is not asked again.
	tooFastPause = time.Minute
)

// usualEvent is the size of the buffer that a stream keeps, in bytes. It grows for a larger event.
const usualEvent = 512

// openLocked has a member's agent tell what it has.
func (d *Store) openLocked(m *member, peers []members.Peer) {
	ctx, cancel := context.WithCancel(d.ctx)
	s := &stream{cancel: cancel, wake: make(chan struct{}, 1), pace: members.NewPace(eventRate, eventBurst, maxAhead)}
	for _, p := range peers {
		s.peers = append(s.peers, p.ID)
	}
	m.stream = s
	d.tasks.Go(func() {
		defer cancel()
		d.listen(ctx, m, s)
	})
}

// listen reads what an agent tells until ctx ends, or until it is clear that it tells nothing.
func (d *Store) listen(ctx context.Context, m *member, s *stream) {
	for failures := 0; ; failures++ {
		err := d.read(ctx, m, s)
		d.mu.Lock()
		synced := s.synced
		s.synced, s.offer = false, nil
		var lacking []Key
		unknown := members.IsStatus(err, http.StatusNotFound)
		if unknown && m.stream == s {
			m.stream = nil // its next report or connection has it asked again
			lacking = m.refuseLocked(v1.ReasonAgentTooOld)
		}
		d.mu.Unlock()
		d.notify(lacking...)
		if unknown || ctx.Err() != nil {
			return
		}
		if synced {
			failures = 0 // it ended as streams do whose agent no longer leads, or whose tunnel moved
		}
		d.Log.V(1).Info("sets of a member are no longer told", "cluster", m.name, "cause", errorText(err))
		if !d.rest(ctx, m, s, err, failures) {
			return
		}
	}
}

// rest waits before an agent is asked again, and is whether ctx has not ended by then. One that ran ahead is not woken.
func (d *Store) rest(ctx context.Context, m *member, s *stream, cause error, failures int) bool {
	if errors.Is(cause, members.ErrTooFast) {
		d.Members.TooFast(m.name, "changes of sets")
		return pause(ctx, nil, tooFastPause)
	}
	return pause(ctx, s.wake, backoff(d.Pause, failures, maxStreamPause))
}

// pause waits, or is woken, and is whether ctx has not ended by then.
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

// backoff doubles from first to most, each time between half of it and the whole.
func backoff(first time.Duration, failures int, most time.Duration) time.Duration {
	whole := most
	if failures < 20 {
		whole = min(first<<failures, most)
	}
	return wait.Jitter(whole/2, 1)
}

// read reads one stream to its end.
func (d *Store) read(ctx context.Context, m *member, s *stream) error {
	resp, err := d.request(ctx, m.name, http.MethodGet, protocol.PathSets, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	d.mu.Lock()
	s.offer = map[string]*protocol.SetState{}
	d.mu.Unlock()
	lines := members.NewLines(resp.Body, usualEvent, protocol.MaxSetEvent)
	for left, synced := maxOffer, false; lines.Scan(); {
		var event protocol.SetEvent
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return errors.New("a line is no event") // the cause quotes the line
		}
		if left, synced = left-len(lines.Bytes()), synced || event.Synced; left < 0 && !synced {
			return fmt.Errorf("the agent offers more than %d bytes", maxOffer)
		}
		event.Bound()
		if !event.Valid() {
			return errors.New("an event names no set")
		}
		if synced {
			if err := s.pace.Wait(ctx); err != nil {
				return err
			}
		}
		d.notify(d.take(m, s, &event)...)
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.EOF
}

// take takes over an event, and returns the owners of what has changed.
func (d *Store) take(m *member, s *stream, event *protocol.SetEvent) []Key {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.stream != s {
		return nil
	}
	var changed []Key
	switch {
	case event.Synced:
		changed = m.lackingLocked() // before, nobody knew how they are; what is there as it should be, is told below
		changed = append(changed, m.syncLocked(s)...)
	case event.State != nil && !s.synced:
		s.offer[event.State.ID] = share(event.State, m.wants[event.State.ID].set)
	case event.State != nil && m.strangeLocked(event.State.ID):
	case event.State != nil:
		changed = m.toldLocked(event.State.ID, share(event.State, m.wants[event.State.ID].set))
	case event.Removed != "" && !s.synced:
		delete(s.offer, event.Removed)
	case event.Removed != "":
		changed = m.toldLocked(event.Removed, nil)
	}
	d.pumpLocked(m)
	return changed
}

// strangeLocked is whether a set is one more that nobody wants and nobody has heard of, of too many.
func (m *member) strangeLocked(id string) bool {
	_, wanted := m.wants[id]
	return !wanted && m.has[id] == nil && len(m.has) >= len(m.wants)+maxStrangers
}

// syncLocked takes over all that is there.
func (m *member) syncLocked(s *stream) []Key {
	var changed []Key
	for id := range m.has {
		if s.offer[id] == nil {
			changed = append(changed, m.toldLocked(id, nil)...)
		}
	}
	for id, state := range s.offer {
		changed = append(changed, m.toldLocked(id, state)...)
	}
	for id := range m.wants {
		m.touchLocked(id, false)
	}
	s.synced, s.offer, m.heard = true, nil, true
	return changed
}

// toldLocked takes over how a set is, nil for one that is not there, and returns its owner if that is news.
func (m *member) toldLocked(id string, state *protocol.SetState) []Key {
	was := m.has[id]
	if state == nil {
		delete(m.has, id)
	} else {
		m.has[id] = state
	}
	m.touchLocked(id, false)
	if want := m.wants[id]; want.set != nil && was != state && !reflect.DeepEqual(was, state) {
		return []Key{want.key}
	}
	return nil
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return fmt.Sprint(err)
}
