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

// send sends a set, or removes it, and applies the result. Its caller does not hold mu.
func (d *Store) send(m *member, s *sending) {
	defer close(s.done)
	var state *protocol.SetState
	var err error
	if d.Leaving != nil && d.Leaving(d.ctx, m.name) {
		d.Forget(m.name) // a set may be withdrawn because a Cluster is deleted, before Forget is called
	} else {
		state, err = d.transfer(d.ctx, s)
	}
	d.mu.Lock()
	defer d.unlock()
	delete(m.sends, s.id)
	if err == nil {
		m.took(time.Now())
	}
	if !m.gone {
		d.sent(m, s, state, err)
	}
	d.enqueue(m, s.id) // it failed, or another set is wanted now
	d.resume(m)
	d.drop(m)
}

// sent applies the result of a send, and notifies the owner of the set.
func (d *Store) sent(m *member, s *sending, state *protocol.SetState, err error) {
	want := m.entry(s.id)
	if want.set != nil {
		d.affected = append(d.affected, want.key)
	}
	switch {
	case err == nil && s.id == unusedID && m.hold.Waits():
		d.clearFailure(m, s.id)
		d.agreed(m)
	case err == nil && s.due == nil:
		d.clearFailure(m, s.id)
		delete(m.has, s.id)
		m.hold.Settle(s.id)
		d.compareLater(m)
	case err == nil && state.Phase == protocol.SetReadOnly:
		d.refused(m, v1.ReasonAgentReadOnly)
	case err == nil:
		if f := m.failed[s.id]; f == nil || !f.lost { // a set that is lost each time would be sent without pauses
			d.clearFailure(m, s.id)
		}
		m.has[s.id] = want.share(state)
	case members.IsStatus(err, http.StatusNotFound):
		d.refused(m, v1.ReasonAgentTooOld)
	default:
		due := m.next(s.id, d.Restore.Rule(s.id), d.owners.complete)
		if (due == nil) == (s.due == nil) && (due == nil || due.Digest == s.due.Digest) { // the owner wants it still
			d.failed(m, s.id, err)
		}
	}
}

// refused notes why an agent takes no sets, and notifies the owners of all that the member lacks.
func (d *Store) refused(m *member, reason string) {
	m.refuses = reason
	d.affected = append(d.affected, m.lacking()...)
}

// failed records a failure, and when to try again.
func (d *Store) failed(m *member, id string, err error) {
	t := target{m.name, id}
	wait := d.backoff.When(t)
	refused := members.IsStatus(err, http.StatusUnprocessableEntity) || members.IsStatus(err, http.StatusRequestEntityTooLarge)
	if refused {
		wait = maxPause
	}
	m.failed[id] = &failure{count: d.backoff.NumRequeues(t), refused: refused, message: err.Error(), retryAt: time.Now().Add(wait)}
}

// lost notes that a member does not have a set any more that it had, and when to send it again. The pauses grow for as long as that goes on.
func (d *Store) lost(m *member, id string) {
	if f := m.failed[id]; f != nil && time.Since(f.retryAt) > maxPause {
		d.clearFailure(m, id)
	}
	m.failed[id] = &failure{lost: true, message: "the agent has lost it", retryAt: time.Now().Add(d.backoff.When(target{m.name, id}))}
}

// clearFailure forgets the failures of a set.
func (d *Store) clearFailure(m *member, id string) {
	if m.failed[id] != nil {
		delete(m.failed, id)
		d.backoff.Forget(target{m.name, id})
	}
}

// clearFailures forgets the failures of all sets in a member.
func (d *Store) clearFailures(m *member) {
	for id := range m.failed {
		d.clearFailure(m, id)
	}
}

// transfer sends a set to a member's agent, or removes it there, and returns the state that the agent reports of a set that was sent. The methods
// of Options take part in no lock.
func (o *Options) transfer(ctx context.Context, s *sending) (state *protocol.SetState, err error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	begun, verb, result := time.Now(), "put", "ok"
	if s.due == nil {
		verb, err = "delete", o.remove(ctx, s)
	} else {
		state, err = o.put(ctx, s)
	}
	if err != nil {
		result = "failed"
	}
	if o.Observer.Sent != nil {
		o.Observer.Sent(verb, result, time.Since(begun))
	}
	return state, err
}

// put sends a set.
func (o *Options) put(ctx context.Context, s *sending) (*protocol.SetState, error) {
	resp, err := o.request(ctx, s.member, http.MethodPut, protocol.SetPathAt(s.id, o.Restore.Checkpoint()), s.due.JSON())
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	state := &protocol.SetState{}
	if err := untrusted.ReadJSON(resp.Body, state, untrusted.Large().WithBytes(protocol.MaxLine)); err != nil {
		return nil, errors.New("the agent's response cannot be read") // the cause may quote it
	}
	state.Bound()
	if state.Digest != s.due.Digest && state.Phase != protocol.SetReadOnly { // otherwise it would be sent again at once, forever
		return nil, errors.New("the agent reports another digest than was sent")
	}
	state.ID, state.Digest = s.id, s.due.Digest // so that the response's strings need not be kept
	return state, nil
}

// remove removes a set. It succeeds if the set is not there.
func (o *Options) remove(ctx context.Context, s *sending) error {
	reached := o.Restore.Checkpoint()
	if s.bare {
		reached = ""
	}
	if s.id == unusedID && reached == "" {
		return errors.New("this manager has no checkpoint yet that the agent could take")
	}
	resp, err := o.request(ctx, s.member, http.MethodDelete, protocol.SetPathAt(s.id, reached), nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// request sends a request to the leader among a member's agents and returns a successful response.
func (o *Options) request(ctx context.Context, name types.NamespacedName, method, path string, body []byte) (*http.Response, error) {
	agent, err := o.Leading(name)
	if err != nil {
		return nil, err
	}
	return members.Ask(ctx, agent, method, path, body)
}
