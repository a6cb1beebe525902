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

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/untrusted"
)

// Limits for the pause before a failed send is repeated.
const (
	firstPause = 100 * time.Millisecond
	maxPause   = 5 * time.Minute
)

// Limits on the sends in progress.
const (
	// workers is the number of sets that are reconciled concurrently. A send occupies a worker for at most slowSend, so
	// even a large number of unresponsive members delays the other members only briefly.
	workers = 512
	// slowSend is how long a worker waits for a send. A send that takes longer continues without a worker.
	slowSend = 500 * time.Millisecond
	// maxSlowSends is the maximum number of concurrent sends to a member while one of them takes longer than slowSend.
	// With this limit, 1,000 unresponsive members occupy the workers for seconds rather than minutes.
	maxSlowSends = 8
	// maxMemberSends is the maximum number of concurrent sends to one member. An agent with many sets responds to most
	// sends only after it has applied the sets. The agent also has its own limit.
	maxMemberSends = 256
	// maxMemberBytes is the maximum total size of the sets that are being sent to one member, in bytes. A single set
	// may exceed this limit.
	maxMemberBytes = 4 << 20
)

// target identifies a set in a member. The store reconciles one target at a time.
type target struct {
	member types.NamespacedName
	id     string
}

// Start sends sets until ctx is done. It returns once no send is in progress.
func (d *Store) Start(ctx context.Context) error {
	c, err := controller.NewTypedUnmanaged("delivery", controller.TypedOptions[target]{
		Reconciler: reconcile.TypedFunc[target](d.reconcile), MaxConcurrentReconciles: workers, Logger: d.Log,
		SkipNameValidation: new(true), // tests use several stores
	})
	if err != nil {
		return err
	}
	if err := c.Watch(changes{d}); err != nil {
		return err
	}
	defer d.sends.Wait()
	defer d.close()
	forget := context.AfterFunc(ctx, d.close)
	defer forget()
	return c.Start(ctx)
}

// changes is the source of targets. Its name appears in the controller's logs.
type changes struct{ store *Store }

// Start implements source.TypedSource.
func (c changes) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[target]) error {
	return c.store.begin(ctx, queue)
}

func (changes) String() string { return "changes of sets" }

// begin passes the controller's queue to the store. Every change to a member's required or existing sets adds targets
// to this queue.
func (d *Store) begin(_ context.Context, queue workqueue.TypedRateLimitingInterface[target]) error {
	g := d.lock()
	defer d.unlock()
	g.queue, g.started = queue, time.Now()
	for _, m := range g.members {
		g.look(m)
		g.drop(m)
	}
	return nil
}

// close ends all sends in progress.
func (d *Store) close() {
	g := d.lock()
	defer d.unlock()
	g.queue, g.closed = nil, true
	d.stop()
}

// reconcile sends a set to a member or removes it, if the member's set differs from the required one. When the send
// ends, the target is queued again if there is more to do.
func (d *Store) reconcile(_ context.Context, t target) (reconcile.Result, error) {
	send, wait := d.startSend(t)
	if send == nil {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	slow := time.NewTimer(slowSend)
	defer slow.Stop()
	select {
	case <-send.done:
	case <-slow.C:
		d.lock()
		send.slow = true
		d.unlock()
	}
	return reconcile.Result{}, nil
}

// startSend starts a send if one is due. Otherwise, it returns nil and, if the last send failed, the time to wait
// before the next one.
func (d *Store) startSend(t target) (*sending, time.Duration) {
	g := d.lock()
	defer d.unlock()
	m := g.members[t.member]
	if m == nil || g.closed {
		return nil, 0
	}
	if t.id == unusedID {
		g.compare(m)
	}
	var wait time.Duration
	due := m.due(t.id, g.rule(t.id))
	if f := m.failed[t.id]; due && f != nil {
		wait = max(0, time.Until(f.retryAt))
	}
	if !due || wait > 0 {
		g.resume(m)
		return nil, wait
	}
	want := m.next(t.id, g.rule(t.id))
	if !m.room(want) {
		m.waiting[t.id] = struct{}{}
		return nil, 0
	}
	s := &sending{target: t, due: want, bare: m.hold.Waits() && t.id != unusedID, done: make(chan struct{})}
	m.sends[t.id] = s
	d.sends.Go(func() { d.send(m, s) })
	return s, 0
}

// enqueue queues a set if it is due, and reports whether it is due. It is called after the required set or the member's
// set has changed.
func (g *guarded) enqueue(m *member, id string) bool {
	g.compareLater(m)
	due := g.queue != nil && m.due(id, g.rule(id))
	if due {
		g.queue.Add(target{m.name, id})
	}
	return due
}

func (g *guarded) enqueueAll(m *member) {
	for id := range m.wants {
		g.enqueue(m, id)
	}
	for id := range m.has {
		g.enqueue(m, id)
	}
}

// room reports whether another set may be sent to the member now.
func (m *member) room(want *set.Set) bool {
	bytes := 0
	for _, s := range m.sends {
		bytes += size(s.due)
	}
	return len(m.sends) < m.maxSends(time.Now()) && (bytes == 0 || bytes+size(want) <= maxMemberBytes)
}

// resume queues sets that the member's limits have delayed, until the limits are reached again.
func (g *guarded) resume(m *member) {
	if len(m.waiting) == 0 {
		return
	}
	room := m.maxSends(time.Now()) - len(m.sends)
	for id := range m.waiting {
		if room <= 0 {
			return
		}
		delete(m.waiting, id)
		if g.enqueue(m, id) {
			room--
		}
	}
}

// sendTimeout is the timeout for one send. The agent responds within protocol.SetTimeout. The remaining time is for the
// network.
const sendTimeout = protocol.SetTimeout + 20*time.Second

type sending struct {
	target
	due  *set.Set // nil for a removal
	slow bool     // set if the send takes longer than slowSend
	bare bool     // set if no checkpoint is sent, because the member continues to wait for confirmation
	done chan struct{}
}

// send sends a set, or removes it, and applies the result.
func (d *Store) send(m *member, s *sending) {
	defer close(s.done)
	var state *protocol.SetState
	var err error
	if d.Leaving != nil && d.Leaving(d.ctx, m.name) {
		d.Forget(m.name) // a set may be withdrawn because a Cluster is deleted, before Forget is called
	} else {
		state, err = d.transfer(d.ctx, s)
	}
	g := d.lock()
	defer d.unlock()
	if delete(m.sends, s.id); len(m.sends) == 0 {
		m.sends = map[string]*sending{} // a map never shrinks, and many sets may have been sent at the same time
	}
	if err == nil {
		m.took(time.Now())
	}
	if !m.forgotten {
		g.sent(m, s, state, err)
	}
	g.enqueue(m, s.id) // the send may have failed; the required set may have changed
	g.resume(m)
	g.drop(m)
}

// sent applies the result of a send and notifies the owner of the set.
func (g *guarded) sent(m *member, s *sending, state *protocol.SetState, err error) {
	want := m.entry(s.id)
	if want.set != nil {
		g.affected = append(g.affected, want.key)
	}
	switch {
	case err == nil && s.id == unusedID && m.hold.Waits():
		g.retries.clear(m, s.id)
		g.endHold(m)
	case err == nil && s.due == nil:
		g.retries.clear(m, s.id)
		delete(m.has, s.id)
		m.hold.Settle(s.id)
	case err == nil && state.Phase == protocol.SetReadOnly:
		g.affected = append(g.affected, m.refuse(v1.ReasonAgentReadOnly)...)
	case err == nil:
		if f := m.failed[s.id]; f == nil || !f.lost { // keep the pauses for a set that the member loses repeatedly
			g.retries.clear(m, s.id)
		}
		m.has[s.id] = want.share(state)
	case members.IsStatus(err, http.StatusNotFound):
		g.affected = append(g.affected, m.refuse(v1.ReasonAgentTooOld)...)
	default: // the failure counts only if the owner still requires the same set
		due := m.next(s.id, g.rule(s.id))
		if (due == nil) == (s.due == nil) && (due == nil || due.Digest == s.due.Digest) {
			g.retries.failed(m, s.id, err)
		}
	}
}

// transfer sends a set to a member's leading agent, or removes it from the member. After it has sent a set, it returns
// the state that the agent reported.
func (o *Options) transfer(ctx context.Context, s *sending) (state *protocol.SetState, err error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	method, verb, body := http.MethodPut, "put", []byte(nil)
	if s.due == nil {
		method, verb = http.MethodDelete, "delete"
	} else {
		body = s.due.JSON()
	}
	defer func(start time.Time) {
		result := "ok"
		if err != nil {
			result = "failed"
		}
		if o.Observer.Sent != nil {
			o.Observer.Sent(verb, result, time.Since(start))
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

// readState decodes an agent's response to a set.
func readState(response io.Reader, sent *set.Set) (*protocol.SetState, error) {
	state := &protocol.SetState{}
	if err := untrusted.ReadJSON(response, state, untrusted.Large().WithBytes(protocol.MaxLine)); err != nil {
		return nil, errors.New("the agent's response cannot be decoded") // the cause may quote the response
	}
	state.Bound()
	// A different digest must be an error. Otherwise, the set would be sent again and again without a pause.
	if state.Digest != sent.Digest && state.Phase != protocol.SetReadOnly {
		return nil, errors.New("the agent reports a digest that differs from the set's")
	}
	state.ID, state.Digest = sent.ID, sent.Digest // allows the response to be freed
	return state, nil
}

// flow tracks the sends to a member, and how many sets the member has accepted recently.
type flow struct {
	sends map[string]*sending // in progress
	// waiting contains the IDs of sets that will be sent as soon as there is room for them.
	waiting map[string]struct{}
	// taken counts the successful sends in two periods of length slowSend. The first value is for the current period,
	// and the second is for the previous period.
	taken [2]int
	start time.Time
}

func (f *flow) took(now time.Time) {
	switch since := now.Sub(f.start); {
	case since >= 2*slowSend:
		f.taken, f.start = [2]int{}, now
	case since >= slowSend:
		f.taken, f.start = [2]int{0, f.taken[0]}, now
	}
	f.taken[0]++
}

// maxSends returns the maximum number of concurrent sends to the member. While one of the sends is slow, the maximum is
// the number of sets that the member has accepted recently. As a result, a busy member continues at its own pace, and
// an unresponsive member occupies few workers.
func (f *flow) maxSends(now time.Time) int {
	for _, s := range f.sends {
		if !s.slow {
			continue
		}
		if now.Sub(f.start) >= 2*slowSend {
			return maxSlowSends
		}
		return min(max(maxSlowSends, f.taken[0]+f.taken[1]), maxMemberSends)
	}
	return maxMemberSends
}
