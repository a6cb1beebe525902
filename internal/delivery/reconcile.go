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
	defer d.tasks.Wait()
	defer d.close()
	forget := context.AfterFunc(ctx, d.close)
	defer forget()
	return c.Start(ctx)
}

// begin gives the store the queue of its controller. Whatever changes what a member should have or has puts targets there.
func (d *Store) begin(_ context.Context, queue workqueue.TypedRateLimitingInterface[target]) error {
	d.mu.Lock()
	d.queue, d.started = queue, time.Now()
	var lacking []Key
	for _, m := range d.members {
		lacking = append(lacking, d.lookLocked(m)...)
		d.dropLocked(m)
	}
	d.mu.Unlock()
	d.notify(lacking...)
	return nil
}

// close ends all that is in progress.
func (d *Store) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue, d.closed = nil, true
	d.stop()
}

// reconcile sends a set to a member, or removes it there, if the member has another than it should. The end of a send puts the target into the
// queue again if there is more to do.
func (d *Store) reconcile(_ context.Context, t target) (reconcile.Result, error) {
	d.mu.Lock()
	m := d.members[t.member]
	if m == nil {
		d.mu.Unlock()
		return reconcile.Result{}, nil
	}
	var changed []Key
	if t.id == unusedID {
		changed = d.compareLocked(m)
	}
	send, wait := d.sendLocked(m, t)
	d.mu.Unlock()
	d.notify(changed...)
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

// sendLocked starts a send if one is due. Otherwise it returns nil and, after a failure, the time to wait.
func (d *Store) sendLocked(m *memberSets, t target) (*sending, time.Duration) {
	if !d.dueLocked(m, t.id) {
		d.resumeLocked(m)
		return nil, 0
	}
	if f := m.failed[t.id]; f != nil {
		if wait := time.Until(f.retryAt); wait > 0 {
			d.resumeLocked(m)
			return nil, wait
		}
	}
	want := d.nextLocked(m, t.id)
	if !m.roomLocked(want) {
		m.held[t.id] = struct{}{}
		return nil, 0
	}
	s := &sending{target: t, due: want, bare: m.unconfirmed && t.id != unusedID, done: make(chan struct{})}
	m.sends[t.id] = s
	d.tasks.Go(func() { d.send(m, s) })
	return s, 0
}

// dueLocked reports whether a set is to be sent to a member or removed there now. If the member cannot take it, its connection or the report of
// its sets is what puts the target into the queue, and if a send is in progress, its end.
func (d *Store) dueLocked(m *memberSets, id string) bool {
	switch {
	case d.queue == nil || !m.takesLocked() || m.sends[id] != nil:
		return false
	case m.unconfirmed && id == unusedID:
		return m.agreesLocked()
	case d.outdatedLocked(m, id):
		return true
	case m.heldLocked(id):
		return false
	}
	if want := m.wantedLocked(id); want != nil {
		return !unchanged(want) && !m.hasLocked(id)
	}
	// Without an owner a set is removed only if all owners have said what they want.
	return m.has[id] != nil && (d.complete || m.withheld || IsAbsent(m.entryLocked(id).set))
}

// enqueueLocked puts a set in a member into the queue if it is to be sent or removed, and reports whether it is.
func (d *Store) enqueueLocked(m *memberSets, id string) bool {
	due := d.dueLocked(m, id)
	if due {
		d.queue.Add(target{m.name, id})
	}
	return due
}

// enqueueAllLocked does so for all sets in a member.
func (d *Store) enqueueAllLocked(m *memberSets) {
	for id := range m.wants {
		d.enqueueLocked(m, id)
	}
	for id := range m.has {
		d.enqueueLocked(m, id)
	}
}

// resumeLocked puts sets that were held by the bounds of a member into the queue, as many as there is room for.
func (d *Store) resumeLocked(m *memberSets) {
	if len(m.held) == 0 {
		return
	}
	room := m.maxSendsLocked(time.Now()) - len(m.sends)
	for id := range m.held {
		if room <= 0 {
			return
		}
		delete(m.held, id)
		if d.enqueueLocked(m, id) {
			room--
		}
	}
}
