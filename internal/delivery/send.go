// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"context"
	"errors"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/untrusted"
)

// sendTimeout bounds one send. The agent answers within protocol.SetTimeout; the rest is for the network.
const sendTimeout = protocol.SetTimeout + 20*time.Second

// sending is a send in progress.
type sending struct {
	target
	due  *set.Set // nil for a removal
	slow bool     // it takes longer than slowSend
	bare bool     // without a checkpoint: the member waits for a confirmation, and goes on to wait
	done chan struct{}
}

// send sends a set, or removes it, and applies the result.
func (d *Store) send(m *memberSets, s *sending) {
	defer close(s.done)
	var state *protocol.SetState
	var err error
	if d.Leaving != nil && d.Leaving(d.ctx, m.name) {
		d.Forget(m.name) // a set may be withdrawn because a Cluster is deleted, before Forget is called
	} else {
		state, err = d.transfer(s)
	}
	d.mu.Lock()
	delete(m.sends, s.id)
	if err == nil {
		m.tookLocked(time.Now())
	}
	keys := d.sentLocked(m, s, state, err)
	d.enqueueLocked(m, s.id) // it failed, or another set is wanted now
	d.resumeLocked(m)
	d.dropLocked(m)
	d.mu.Unlock()
	d.notify(keys...)
}

// transfer sends a set, or removes it.
func (d *Store) transfer(s *sending) (state *protocol.SetState, err error) {
	begun, verb, result := time.Now(), "put", "ok"
	if s.due == nil {
		verb, err = "delete", d.remove(s)
	} else {
		state, err = d.put(s.member, s.due)
	}
	if err != nil {
		result = "failed"
	}
	if d.Observer.Sent != nil {
		d.Observer.Sent(verb, result, time.Since(begun))
	}
	return state, err
}

// sentLocked applies the result of a send, and returns the owner of the set of that ID.
func (d *Store) sentLocked(m *memberSets, s *sending, state *protocol.SetState, err error) []Key {
	if m.gone {
		return nil
	}
	var keys []Key
	if want := m.entryLocked(s.id); want.set != nil {
		keys = []Key{want.key}
	}
	switch {
	case err == nil && s.id == unusedID && m.unconfirmed:
		d.clearFailureLocked(m, s.id)
		keys = append(keys, d.agreedLocked(m)...)
	case err == nil && s.due == nil:
		d.clearFailureLocked(m, s.id)
		delete(m.has, s.id)
		delete(m.withdrawn, s.id)
		d.differsLocked(m)
	case err == nil && state.Phase == protocol.SetReadOnly:
		keys = m.refuseLocked(v1.ReasonAgentReadOnly)
	case err == nil:
		if f := m.failed[s.id]; f == nil || !f.lost { // one that is lost each time would be sent without pauses
			d.clearFailureLocked(m, s.id)
		}
		m.has[s.id] = m.entryLocked(s.id).share(state)
	case members.IsStatus(err, http.StatusNotFound):
		keys = m.refuseLocked(v1.ReasonAgentTooOld)
	default:
		if due := d.nextLocked(m, s.id); (due == nil) == (s.due == nil) && (due == nil || due.Digest == s.due.Digest) { // the owner wants it still
			d.failLocked(m, s.target, err)
		}
	}
	return keys
}

// failLocked records a failure, and when to try again.
func (d *Store) failLocked(m *memberSets, t target, err error) {
	wait := d.backoff.When(t)
	refused := members.IsStatus(err, http.StatusUnprocessableEntity) || members.IsStatus(err, http.StatusRequestEntityTooLarge)
	if refused {
		wait = maxPause
	}
	m.failed[t.id] = &failure{count: d.backoff.NumRequeues(t), refused: refused, message: err.Error(), retryAt: time.Now().Add(wait)}
}

// lostLocked notes that a member does not have a set any more that it had, and when to send it again. The pauses grow for as long as that goes on.
func (d *Store) lostLocked(m *memberSets, t target) {
	if f := m.failed[t.id]; f != nil && time.Since(f.retryAt) > maxPause {
		d.clearFailureLocked(m, t.id)
	}
	m.failed[t.id] = &failure{lost: true, message: "the agent has lost it", retryAt: time.Now().Add(d.backoff.When(t))}
}

// clearFailureLocked forgets the failures of a set.
func (d *Store) clearFailureLocked(m *memberSets, id string) {
	if m.failed[id] != nil {
		delete(m.failed, id)
		d.backoff.Forget(target{m.name, id})
	}
}

// clearFailuresLocked forgets the failures of all sets in a member.
func (d *Store) clearFailuresLocked(m *memberSets) {
	for id := range m.failed {
		d.clearFailureLocked(m, id)
	}
}

// put sends a set.
func (d *Store) put(name types.NamespacedName, s *set.Set) (*protocol.SetState, error) {
	ctx, cancel := context.WithTimeout(d.ctx, sendTimeout)
	defer cancel()
	resp, err := d.request(ctx, name, http.MethodPut, d.path(s.ID), s.JSON())
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	state := &protocol.SetState{}
	if err := untrusted.ReadJSON(resp.Body, state, untrusted.Large().WithBytes(protocol.MaxLine)); err != nil {
		return nil, errors.New("the agent's response cannot be read") // the cause may quote it
	}
	state.Bound()
	if state.Digest != s.Digest && state.Phase != protocol.SetReadOnly { // otherwise it would be sent again at once, forever
		return nil, errors.New("the agent reports another digest than was sent")
	}
	state.ID, state.Digest = s.ID, s.Digest // so that the response's strings need not be kept
	return state, nil
}

// remove removes a set. It succeeds if the set is not there.
func (d *Store) remove(s *sending) error {
	ctx, cancel := context.WithTimeout(d.ctx, sendTimeout)
	defer cancel()
	bare := protocol.SetPath(s.id)
	path := d.path(s.id)
	if s.bare {
		path = bare
	}
	if s.id == unusedID && path == bare {
		return errors.New("this manager has no checkpoint yet that the agent could take")
	}
	resp, err := d.request(ctx, s.member, http.MethodDelete, path, nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// path returns that of a set, with the present checkpoint.
func (d *Store) path(id string) string {
	if d.Checkpoint == nil {
		return protocol.SetPath(id)
	}
	return protocol.SetPathAt(id, d.Checkpoint())
}

// request sends a request to the leader among a member's agents and returns a successful response.
func (d *Store) request(ctx context.Context, name types.NamespacedName, method, path string, body []byte) (*http.Response, error) {
	agent, err := d.Leading(name)
	if err != nil {
		return nil, err
	}
	return members.Ask(ctx, agent, method, path, body)
}
