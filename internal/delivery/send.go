// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
)

// sendTimeout bounds one send. The agent answers within protocol.SetTimeout; the rest is for the network.
const sendTimeout = protocol.SetTimeout + 20*time.Second

// pumpLocked starts sends for the sets that differ, within the bounds.
func (d *Store) pumpLocked(m *member) {
	if !d.running || !m.readyLocked() {
		return
	}
	for id, removable := range m.touched {
		if _, busy := m.sends[id]; busy {
			continue // its end pumps again
		}
		want, has := m.dueLocked(id), m.has[id]
		paused := m.failed[id] != nil && m.failed[id].retry != nil
		switch {
		case paused, want != nil && want.unchanged, want == nil && has == nil, want != nil && m.hasLocked(id), want == nil && !removable && !d.complete && !m.withheld:
			delete(m.touched, id)
			continue
		case len(m.sends) >= maxMemberSends, m.bytes > 0 && m.bytes+want.size() > maxMemberBytes:
			return // the end of one of them pumps again
		case d.sending >= maxSends:
			if !m.queued {
				m.queued = true
				d.waiting = append(d.waiting, m)
			}
			return
		}
		delete(m.touched, id)
		s := &sending{bytes: want.size()}
		m.sends[id] = s
		m.bytes += s.bytes
		d.sending++
		d.tasks.Go(func() { d.send(m, id, want, s) })
	}
}

// uncountLocked stops counting a send towards maxSends.
func (d *Store) uncountLocked(s *sending) {
	if !s.slow {
		s.slow = true
		d.sending--
		d.nextLocked()
	}
}

// send sends a set, or removes it if want is nil, and applies the result.
func (d *Store) send(m *member, id string, want *Set, s *sending) {
	slow := time.AfterFunc(slowSend, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.uncountLocked(s)
	})
	defer slow.Stop()
	var state *protocol.SetState
	var err error
	if d.Leaving != nil && d.Leaving(d.ctx, m.name) {
		d.Forget(m.name) // a set may be withdrawn because a Cluster is deleted, before Forget is called
	} else {
		state, err = d.transfer(m.name, id, want)
	}
	d.mu.Lock()
	delete(m.sends, id)
	m.bytes -= s.bytes
	keys := d.sentLocked(m, id, want, state, err)
	d.pumpLocked(m)
	d.uncountLocked(s)
	d.dropLocked(m)
	d.mu.Unlock()
	d.notify(keys...)
}

// transfer sends a set, or removes it if want is nil.
func (d *Store) transfer(name types.NamespacedName, id string, want *Set) (state *protocol.SetState, err error) {
	begun, verb := time.Now(), "put"
	if want == nil {
		verb = "delete"
		err = d.remove(name, id)
	} else {
		state, err = d.put(name, id, want)
	}
	d.observe(verb, err, time.Since(begun))
	return state, err
}

// observe reports a send to the observer.
func (d *Store) observe(verb string, err error, took time.Duration) {
	if d.Observer.Sent == nil {
		return
	}
	result := "ok"
	if err != nil {
		result = "failed"
	}
	d.Observer.Sent(verb, result, took)
}

// nextLocked starts sends of the members that wait for maxSends.
func (d *Store) nextLocked() {
	for len(d.waiting) > 0 && d.sending < maxSends {
		next := d.waiting[0]
		d.waiting[0] = nil
		d.waiting = d.waiting[1:]
		next.queued = false
		d.pumpLocked(next)
	}
}

// sentLocked applies the result of a send, and returns the owner of the set of that ID.
func (d *Store) sentLocked(m *member, id string, sent *Set, state *protocol.SetState, err error) []Key {
	if m.gone {
		return nil
	}
	m.touchLocked(id, sent == nil)
	var keys []Key
	if want := m.wants[id]; want.set != nil {
		keys = []Key{want.key}
	}
	switch {
	case err == nil && sent == nil:
		m.clearFailureLocked(id)
		delete(m.has, id)
	case err == nil && state.Phase == protocol.SetReadOnly:
		keys = m.refuseLocked(v1.ReasonAgentReadOnly)
		m.closeStreamLocked()
	case err == nil:
		m.clearFailureLocked(id)
		m.has[id] = share(state, sent)
	case members.IsStatus(err, http.StatusNotFound):
		keys = m.refuseLocked(v1.ReasonAgentTooOld)
		m.closeStreamLocked()
	default:
		if want := m.dueLocked(id); want != sent && (want == nil || sent == nil || want.Digest != sent.Digest) {
			return keys // the owner wants something else now
		}
		d.failLocked(m, id, err)
	}
	return keys
}

// failLocked schedules a retry with backoff.
func (d *Store) failLocked(m *member, id string, err error) {
	f := m.failed[id]
	if f == nil {
		f = &failure{}
		m.failed[id] = f
	}
	f.count++
	f.message = err.Error()
	f.refused = members.IsStatus(err, http.StatusUnprocessableEntity) || members.IsStatus(err, http.StatusRequestEntityTooLarge)
	wait := backoff(d.Pause, f.count-1, maxPause)
	if f.refused {
		wait = maxPause
	}
	if d.closed {
		return
	}
	f.retry = time.AfterFunc(wait, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if m.failed[id] != f || d.closed {
			return
		}
		f.retry = nil
		m.touchLocked(id, m.dueLocked(id) == nil)
		d.pumpLocked(m)
	})
}

// put sends a set.
func (d *Store) put(name types.NamespacedName, id string, set *Set) (*protocol.SetState, error) {
	ctx, cancel := context.WithTimeout(d.ctx, sendTimeout)
	defer cancel()
	resp, err := d.request(ctx, name, http.MethodPut, protocol.SetPath(id), set.body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	state := &protocol.SetState{}
	if err := json.NewDecoder(io.LimitReader(resp.Body, protocol.MaxSetEvent)).Decode(state); err != nil {
		return nil, errors.New("the agent's response cannot be read") // the cause may quote it
	}
	state.Bound()
	if state.Digest != set.Digest && state.Phase != protocol.SetReadOnly { // otherwise it would be sent again at once, forever
		return nil, errors.New("the agent reports another digest than was sent")
	}
	state.ID, state.Digest = set.ID, set.Digest // so that the response's strings need not be kept
	return state, nil
}

// remove removes a set. It succeeds if the set is not there.
func (d *Store) remove(name types.NamespacedName, id string) error {
	ctx, cancel := context.WithTimeout(d.ctx, sendTimeout)
	defer cancel()
	resp, err := d.request(ctx, name, http.MethodDelete, protocol.SetPath(id), nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// request sends a request to the leader among a member's agents and returns a successful response.
func (d *Store) request(ctx context.Context, name types.NamespacedName, method, path string, body []byte) (*http.Response, error) {
	agent, err := d.Members.Leading(name)
	if err != nil {
		return nil, err
	}
	return members.Ask(ctx, agent, method, path, body)
}
