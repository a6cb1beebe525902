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
	// maxStreamPause is the longest pause before the stream of a connected agent is opened again.
	maxStreamPause = 30 * time.Second
)

// Bounds on what an agent reports: it is kept in memory, it causes reconciles on the hub, and the agent may be malicious.
const (
	// maxOffer bounds the report of all sets, in bytes.
	maxOffer = 16 << 20
	// maxUnowned bounds the sets without owner that are kept, beyond those in the first report.
	maxUnowned = 1024
	// eventRate is the number of changes that are read each second, eventBurst that at once.
	eventRate, eventBurst = 200, 5000
	// maxAhead is how long an agent may exceed that.
	maxAhead = 10 * time.Second
	// tooFastPause is the pause after that.
	tooFastPause = time.Minute
)

// usualEvent is the size of the buffer that a stream keeps, in bytes. It grows for a larger event.
const usualEvent = 512

// openLocked opens the stream on which a member's agent reports its sets.
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

// listen reads an agent's reports until ctx ends or the agent responds that it has no such stream.
func (d *Store) listen(ctx context.Context, m *member, s *stream) {
	for failures := 0; ; failures++ {
		err := d.read(ctx, m, s)
		d.mu.Lock()
		synced := s.synced
		s.synced, s.offer = false, nil
		var lacking []Key
		unknown := members.IsStatus(err, http.StatusNotFound)
		if unknown && m.stream == s {
			m.stream = nil // its next report or connection opens it again
			lacking = m.refuseLocked(v1.ReasonAgentTooOld)
		}
		d.mu.Unlock()
		d.notify(lacking...)
		if unknown || ctx.Err() != nil {
			return
		}
		if synced {
			failures = 0 // a stream ends normally when the agent no longer leads or its tunnel moved
		}
		d.Log.V(1).Info("stream of sets ended", "cluster", m.name, "cause", errorText(err))
		if !d.rest(ctx, m, s, err, failures) {
			return
		}
	}
}

// rest waits before the stream is opened again, and reports whether ctx is still active. A wake does not shorten the pause after ErrTooFast.
func (d *Store) rest(ctx context.Context, m *member, s *stream, cause error, failures int) bool {
	if errors.Is(cause, members.ErrTooFast) {
		d.Members.TooFast(m.name, "changes of sets")
		return pause(ctx, nil, tooFastPause)
	}
	return pause(ctx, s.wake, backoff(d.Pause, failures, maxStreamPause))
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

// backoff doubles from first up to most, with jitter between half of it and the whole.
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
			return errors.New("a line is not an event") // the cause quotes the line
		}
		if left, synced = left-len(lines.Bytes()), synced || event.Synced; left < 0 && !synced {
			return fmt.Errorf("the agent offers more than %d bytes", maxOffer)
		}
		event.Bound()
		if !event.Valid() {
			return errors.New("an event does not name a set")
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

// take applies an event, and returns the owners of the sets that changed.
func (d *Store) take(m *member, s *stream, event *protocol.SetEvent) []Key {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.stream != s {
		return nil
	}
	var changed []Key
	switch {
	case event.Synced:
		changed = m.lackingLocked() // their state was unknown before; the sets that are there are added below
		changed = append(changed, m.syncLocked(s)...)
	case event.State != nil && !s.synced:
		s.offer[event.State.ID] = share(event.State, m.wants[event.State.ID].set)
	case event.State != nil && m.surplusLocked(event.State.ID):
	case event.State != nil:
		changed = m.updateLocked(event.State.ID, share(event.State, m.wants[event.State.ID].set))
	case event.Removed != "" && !s.synced:
		delete(s.offer, event.Removed)
	case event.Removed != "":
		changed = m.updateLocked(event.Removed, nil)
	}
	d.pumpLocked(m)
	return changed
}

// surplusLocked reports whether a set is new, has no owner, and exceeds maxUnowned.
func (m *member) surplusLocked(id string) bool {
	_, wanted := m.wants[id]
	return !wanted && m.has[id] == nil && len(m.has) >= len(m.wants)+maxUnowned
}

// syncLocked applies the report of all sets.
func (m *member) syncLocked(s *stream) []Key {
	var changed []Key
	for id := range m.has {
		if s.offer[id] == nil {
			changed = append(changed, m.updateLocked(id, nil)...)
		}
	}
	for id, state := range s.offer {
		changed = append(changed, m.updateLocked(id, state)...)
	}
	for id := range m.wants {
		m.touchLocked(id, false)
	}
	s.synced, s.offer, m.reported = true, nil, true
	return changed
}

// updateLocked applies the state of a set, nil for one that is not there, and returns its owner if that changed.
func (m *member) updateLocked(id string, state *protocol.SetState) []Key {
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
