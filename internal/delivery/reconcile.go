// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Bounds on the sends in progress.
const (
	// workers is the number of sets that are reconciled at once. One is occupied by a send for slowSend at most, so that members that do not
	// respond, however many, delay the others by little.
	workers = 512
	// slowSend is how long a worker waits for a send. A send that takes longer goes on without one.
	slowSend = 500 * time.Millisecond
	// maxSlowSends bounds the sends in progress to a member that does not respond, while one of them takes longer than slowSend. 1,000 such members
	// occupy the workers for seconds then, and not for minutes.
	maxSlowSends = 8
	// maxMemberSends bounds the sends in progress to one member. Its agent has its own bound; it responds when a set is stored, and
	// applies many before it stores them.
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

// begin gives the store the queue of its controller. Whatever changes what a member should have or has puts targets there.
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

// reconcile sends a set to a member, or removes it there, if the member has another than it should. The end of a send puts the target into the
// queue again if there is more to do. Its caller does not hold mu.
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

// begun starts a send if one is due. Otherwise it returns nil and, after a failure, the time to wait. Its caller does not hold mu.
func (d *Store) begun(t target) (*sending, time.Duration) {
	d.mu.Lock()
	defer d.unlock()
	m := d.members[t.member]
	if m == nil {
		return nil, 0
	}
	if t.id == unusedID {
		d.compare(m)
	}
	var wait time.Duration
	due := d.due(m, t.id)
	if f := m.failed[t.id]; due && f != nil {
		wait = max(0, time.Until(f.retryAt))
	}
	if !due || wait > 0 {
		d.resume(m)
		return nil, wait
	}
	want := m.next(t.id, d.Restore.Rule(t.id), d.owners.complete)
	if !m.room(want) {
		m.waiting[t.id] = struct{}{}
		return nil, 0
	}
	s := &sending{target: t, due: want, bare: m.hold.Waits() && t.id != unusedID, done: make(chan struct{})}
	m.sends[t.id] = s
	d.sends.Go(func() { d.send(m, s) })
	return s, 0
}

// due reports whether a set is to be sent to a member or removed there now.
func (d *Store) due(m *member, id string) bool {
	return d.queue != nil && m.due(id, d.Restore.Rule(id), d.owners.complete)
}

// enqueue puts a set in a member into the queue if it is due, and reports whether it is.
func (d *Store) enqueue(m *member, id string) bool {
	due := d.due(m, id)
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
