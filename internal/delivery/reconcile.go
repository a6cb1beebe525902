// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/untrusted"
)

// Pauses between attempts.
const (
	firstPause = 100 * time.Millisecond
	maxPause   = 5 * time.Minute
)

// Bounds on the sends in progress.
const (
	// workers is the number of sets that are reconciled at once. One is occupied by a send for slowSend at most, so that
	// members that do not respond, however many, delay the others by little.
	workers = 512
	// slowSend is how long a worker waits for a send. A send that takes longer goes on without one.
	slowSend = 500 * time.Millisecond
	// maxSlowSends bounds the sends in progress to a member that does not respond, while one of them takes longer than
	// slowSend. 1,000 such members occupy the workers for seconds then, and not for minutes.
	maxSlowSends = 8
	// maxMemberSends bounds the sends in progress to one member. Its agent has its own bound; it responds when a set is
	// stored, and applies many before it stores them.
	maxMemberSends = 256
	// maxMemberBytes bounds the bytes in progress to one member. One set may exceed it.
	maxMemberBytes = 4 << 20
)

// target is a set in a member: what the store reconciles.
type target struct {
	member types.NamespacedName
	id     string
}

// Start sends until ctx ends, and returns when nothing is in progress.
func (d *Store) Start(ctx context.Context) error {
	c, err := controller.NewTypedUnmanaged("delivery", controller.TypedOptions[target]{
		Reconciler: reconcile.TypedFunc[target](d.reconcile), MaxConcurrentReconciles: workers, Logger: d.Log,
		SkipNameValidation: new(true), // a test has several stores
	})
	if err != nil {
		return err
	}
	if err := c.Watch(source.TypedFunc[target](d.begin)); err != nil {
		return err
	}
	defer d.sends.Wait()
	defer d.close()
	forget := context.AfterFunc(ctx, d.close)
	defer forget()
	return c.Start(ctx)
}

// begin gives the store the queue of its controller. Whatever changes what a member should have or has puts targets
// there.
func (d *Store) begin(_ context.Context, queue workqueue.TypedRateLimitingInterface[target]) error {
	d.mu.Lock()
	defer d.unlock()
	d.queue, d.started = queue, time.Now()
	for _, m := range d.members {
		d.look(m)
		d.drop(m)
	}
	return nil
}

// close ends all that is in progress. Its caller does not hold mu.
func (d *Store) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue, d.closed = nil, true
	d.stop()
}

// reconcile sends a set to a member, or removes it there, if the member has another than it should. The end of a send
// puts the target into the queue again if there is more to do. Its caller does not hold mu.
func (d *Store) reconcile(_ context.Context, t target) (reconcile.Result, error) {
	send, wait := d.begun(t)
	if send == nil {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	slow := time.NewTimer(slowSend)
	defer slow.Stop()
	select {
	case <-send.done:
	case <-slow.C:
		d.mu.Lock()
		send.slow = true
		d.mu.Unlock()
	}
	return reconcile.Result{}, nil
}

// begun starts a send if one is due. Otherwise it returns nil and, after a failure, the time to wait. Its caller does
// not hold mu.
func (d *Store) begun(t target) (*sending, time.Duration) {
	d.mu.Lock()
	defer d.unlock()
	m := d.members[t.member]
	if m == nil || d.closed {
		return nil, 0
	}
	if t.id == unusedID {
		d.compare(m)
	}
	var wait time.Duration
	due := m.due(t.id, d.rule(t.id))
	if f := m.failed[t.id]; due && f != nil {
		wait = max(0, time.Until(f.retryAt))
	}
	if !due || wait > 0 {
		d.resume(m)
		return nil, wait
	}
	want := m.next(t.id, d.rule(t.id))
	if !m.room(want) {
		m.waiting[t.id] = struct{}{}
		return nil, 0
	}
	s := &sending{target: t, due: want, bare: m.hold.Waits() && t.id != unusedID, done: make(chan struct{})}
	m.sends[t.id] = s
	d.sends.Go(func() { d.send(m, s) })
	return s, 0
}

// enqueue puts a set of which a member has, or should have, something else than before into the queue if it is due, and
// reports whether it is.
func (d *Store) enqueue(m *member, id string) bool {
	d.compareLater(m)
	due := d.queue != nil && m.due(id, d.rule(id))
	if due {
		d.queue.Add(target{m.name, id})
	}
	return due
}

// enqueueAll puts all sets in a member that are due into the queue.
func (d *Store) enqueueAll(m *member) {
	for id := range m.wants {
		d.enqueue(m, id)
	}
	for id := range m.has {
		d.enqueue(m, id)
	}
}

// room reports whether one more set may be sent to the member now.
func (m *member) room(want *set.Set) bool {
	bytes := 0
	for _, s := range m.sends {
		bytes += size(s.due)
	}
	return len(m.sends) < m.maxSends(time.Now()) && (bytes == 0 || bytes+size(want) <= maxMemberBytes)
}

// resume puts sets that were delayed by the bounds of a member into the queue, as many as there is room for.
func (d *Store) resume(m *member) {
	if len(m.waiting) == 0 {
		return
	}
	room := m.maxSends(time.Now()) - len(m.sends)
	for id := range m.waiting {
		if room <= 0 {
			return
		}
		delete(m.waiting, id)
		if d.enqueue(m, id) {
			room--
		}
	}
}

// sendTimeout bounds one send. The agent answers within protocol.SetTimeout; the rest is for the network.
const sendTimeout = protocol.SetTimeout + 20*time.Second

// sending is a send in progress.
type sending struct {
	target
	due  *set.Set // nil for a removal
	slow bool     // it takes longer than slowSend
	bare bool     // the member waits for a confirmation, and goes on to wait
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
		d.retries.clear(m, s.id)
		d.endHold(m)
	case err == nil && s.due == nil:
		d.retries.clear(m, s.id)
		delete(m.has, s.id)
		m.hold.Settle(s.id)
	case err == nil && state.Phase == protocol.SetReadOnly:
		d.affected = append(d.affected, m.refuse(v1.ReasonAgentReadOnly)...)
	case err == nil:
		if f := m.failed[s.id]; f == nil || !f.lost { // a set that is lost each time would be sent without pauses
			d.retries.clear(m, s.id)
		}
		m.has[s.id] = want.share(state)
	case members.IsStatus(err, http.StatusNotFound):
		d.affected = append(d.affected, m.refuse(v1.ReasonAgentTooOld)...)
	default:
		due := m.next(s.id, d.rule(s.id))
		if (due == nil) == (s.due == nil) && (due == nil || due.Digest == s.due.Digest) { // the owner wants it still
			d.retries.failed(m, s.id, err)
		}
	}
}

// transfer sends a set to the leader among a member's agents, or removes it there. It returns the state that the agent
// reports of a set that was sent. It takes no lock.
func (o *Options) transfer(ctx context.Context, s *sending) (state *protocol.SetState, err error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	method, verb, body := http.MethodPut, "put", []byte(nil)
	if s.due == nil {
		method, verb = http.MethodDelete, "delete"
	} else {
		body = s.due.JSON()
	}
	defer func(begun time.Time) {
		result := "ok"
		if err != nil {
			result = "failed"
		}
		if o.Observer.Sent != nil {
			o.Observer.Sent(verb, result, time.Since(begun))
		}
	}(time.Now())
	path, err := o.path(s)
	if err != nil {
		return nil, err
	}
	agent, err := o.Leading(s.member)
	if err != nil {
		return nil, err
	}
	resp, err := members.Ask(ctx, agent, method, path, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if s.due == nil {
		return nil, nil
	}
	return readState(resp.Body, s.due)
}

// readState reads an agent's response to a set that it was sent.
func readState(response io.Reader, sent *set.Set) (*protocol.SetState, error) {
	state := &protocol.SetState{}
	if err := untrusted.ReadJSON(response, state, untrusted.Large().WithBytes(protocol.MaxLine)); err != nil {
		return nil, errors.New("the agent's response cannot be read") // the cause may quote it
	}
	state.Bound()
	if state.Digest != sent.Digest && state.Phase != protocol.SetReadOnly { // otherwise it would be sent again at once, forever
		return nil, errors.New("the agent reports another digest than was sent")
	}
	state.ID, state.Digest = sent.ID, sent.Digest // so that the response's strings need not be kept
	return state, nil
}

// flow is what is being sent to a member, and how much the member has taken of late.
type flow struct {
	sends map[string]*sending // in progress
	// waiting are the IDs that are sent when there is room for them.
	waiting map[string]struct{}
	// taken counts the sends that succeeded in the period of slowSend since begun, and in the one before.
	taken [2]int
	begun time.Time
}

// took counts a send that succeeded.
func (f *flow) took(now time.Time) {
	switch since := now.Sub(f.begun); {
	case since >= 2*slowSend:
		f.taken, f.begun = [2]int{}, now
	case since >= slowSend:
		f.taken, f.begun = [2]int{0, f.taken[0]}, now
	}
	f.taken[0]++
}

// maxSends returns how many sends to the member may be in progress. While one of them is slow, these are as many as the
// member has taken of late: one that has much to do goes on at its pace, and one that does not respond occupies few
// workers.
func (f *flow) maxSends(now time.Time) int {
	for _, s := range f.sends {
		if !s.slow {
			continue
		}
		if now.Sub(f.begun) >= 2*slowSend {
			return maxSlowSends
		}
		return min(max(maxSlowSends, f.taken[0]+f.taken[1]), maxMemberSends)
	}
	return maxMemberSends
}

// failure is why a set was not delivered.
type failure struct {
	count   int
	refused bool // the agent rejected it, so that a retry is unlikely to help
	lost    bool // the agent had it, and reports that it does not have it any more
	message string
	retryAt time.Time
}

// retries decide when to send a set again. Store.mu guards them.
type retries struct {
	backoff workqueue.TypedRateLimiter[target]
}

// failed records that a set could not be sent or removed.
func (r retries) failed(m *member, id string, err error) {
	t := target{m.name, id}
	wait := r.backoff.When(t)
	refused := members.IsStatus(err, http.StatusUnprocessableEntity) || members.IsStatus(err, http.StatusRequestEntityTooLarge)
	if refused {
		wait = maxPause
	}
	m.failed[id] = &failure{count: r.backoff.NumRequeues(t), refused: refused, message: err.Error(), retryAt: time.Now().Add(wait)}
}

// lost records that a member does not have a set any more that it had. The pauses grow for as long as that goes on.
func (r retries) lost(m *member, id string) {
	if f := m.failed[id]; f != nil && time.Since(f.retryAt) > maxPause {
		r.clear(m, id)
	}
	m.failed[id] = &failure{lost: true, message: "the agent has lost it", retryAt: time.Now().Add(r.backoff.When(target{m.name, id}))}
}

// clear forgets the failures of a set.
func (r retries) clear(m *member, id string) {
	if m.failed[id] != nil {
		delete(m.failed, id)
		r.backoff.Forget(target{m.name, id})
	}
}

// clearAll forgets the failures of all sets in a member.
func (r retries) clearAll(m *member) {
	for id := range m.failed {
		r.clear(m, id)
	}
}
