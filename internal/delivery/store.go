// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package delivery brings sets to members: it holds what each should have and what it has, and sends the difference.
//
// A Store runs on the leading manager: a controller whose requests are a member and the ID of a set. It sends nothing
// to a member that is not connected; the connection puts its sets into the queue.
package delivery

import (
	"context"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/drover-dev/drover/internal/checkpoint"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/set"
)

// Key names the object on the hub that owns sets. The store does not interpret it.
type Key struct {
	// Kind is the kind of the owner: OnResult registers functions by kind.
	Kind      string
	Namespace string
	Name      string
}

// String is for logs.
func (k Key) String() string { return k.Kind + " " + k.Namespace + "/" + k.Name }

// Options of a Store.
type Options struct {
	// State returns the state of a member.
	State func(member types.NamespacedName) members.State
	// Leading returns a transport to the agent of a member that takes sets.
	Leading func(member types.NamespacedName) (http.RoundTripper, error)
	// Leaving reports whether a member's Cluster is being deleted or gone: nothing more is sent there. Nil means never.
	Leaving func(context.Context, types.NamespacedName) bool
	// ReadOnly reports whether the spec of a member's Cluster has the profile ReadOnly. Then nothing is delivered,
	// whatever the agent reports, and what is there is removed. Call Store.Changed when it changes. Nil means never. It
	// must not call an API server.
	ReadOnly func(context.Context, types.NamespacedName) (bool, error)
	// Restore says what waits for a confirmation after a restore of the hub's etcd. The zero value means nothing.
	Restore checkpoint.Policy
	// Observer observes what is sent. Its functions may be nil.
	Observer Observer
	// Pause is the wait after a first failure; it doubles up to maxPause. Zero means firstPause.
	Pause time.Duration
	Log   logr.Logger
}

// Observer observes what is sent, for metrics.
type Observer struct {
	// Sent is called after each set that was sent or removed: "put" or "delete", "ok" or "failed", and how long it took.
	Sent func(verb, result string, took time.Duration)
	// Awaited is called with the owners that the store waits for, while it is not complete: every few seconds, and at last
	// with none.
	Awaited func([]Key)
}

// Deliverer brings sets to members, and reports their outcomes. A Store is one.
type Deliverer interface {
	Replace(Key, map[types.NamespacedName]*set.Set)
	Outcomes(id string, members []types.NamespacedName) []Outcome
}

// Store holds what each member should have and what it has. It sends the difference after Start. All exported methods
// may be called concurrently. The others, and the methods of member and owners, are called with mu held unless their
// comments say otherwise.
type Store struct {
	Options
	ctx   context.Context // of all sends; stop ends it
	stop  context.CancelFunc
	sends sync.WaitGroup

	mu       sync.Mutex                                   // guards what follows and all members; never held during I/O
	started  time.Time                                    // when Start was called
	queue    workqueue.TypedRateLimitingInterface[target] // nil unless Start runs
	closed   bool
	retries  retries
	members  map[types.NamespacedName]*member
	owners   owners
	result   map[string][]func(Key)
	affected []Key // owners that unlock notifies
}

// New returns a store. It accepts sets at once, and sends nothing before Start.
func New(o Options) *Store {
	if o.Pause == 0 {
		o.Pause = firstPause
	}
	ctx, stop := context.WithCancel(context.Background())
	return &Store{
		Options: o, ctx: ctx, stop: stop, members: map[types.NamespacedName]*member{}, owners: owners{all: map[Key]*owner{}, early: map[Key]struct{}{}}, result: map[string][]func(Key){},
		retries: retries{workqueue.NewTypedItemExponentialFailureRateLimiter[target](o.Pause, maxPause)},
	}
}

// OnResult calls f after the outcome of a set changed, for owners of one kind. f must not block.
func (d *Store) OnResult(kind string, f func(Key)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.result[kind] = append(d.result[kind], f)
}

// unlock releases mu, and then notifies the owners that are affected by what was done under it.
func (d *Store) unlock() {
	affected := d.affected
	d.affected = nil
	var calls []func()
	for _, key := range affected {
		for _, f := range d.result[key.Kind] {
			calls = append(calls, func() { f(key) })
		}
	}
	d.mu.Unlock()
	for _, call := range calls {
		call()
	}
}

// Expect says which owners exist. When Replace was called for each of them, the store is complete: from then on it
// removes from members the sets that have no owner. A second call drops the owners that are gone since the first.
func (d *Store) Expect(keys []Key) {
	d.mu.Lock()
	defer d.unlock()
	if d.owners.expect(keys) {
		d.complete()
	}
}

// complete looks again at all members, since the store has become complete.
func (d *Store) complete() {
	for _, m := range d.members {
		maps.DeleteFunc(m.wants, func(_ string, w *wanted) bool { return w.key == Key{} })
		d.examine(m)
		d.enqueueAll(m)
	}
}

// Complete reports whether Replace was called for every expected owner.
func (d *Store) Complete() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.owners.complete
}

// Replace sets what an owner wants in which members, one set in each. Its sets in other members are removed. Unchanged
// sets cost nothing. Two owners must not want a set of one ID in one member; if they do, the later one owns it.
func (d *Store) Replace(key Key, sets map[types.NamespacedName]*set.Set) {
	d.mu.Lock()
	defer d.unlock()
	if d.closed {
		return
	}
	sets = d.owners.bound(key, sets)
	o := d.owners.get(key)
	for m, id := range o.members {
		if s := sets[m.name]; s == nil || s.ID != id {
			delete(o.members, m)
			d.withdraw(m, id, key)
		}
	}
	shared := make(map[string]content, 1)
	for name, s := range sets {
		m := d.wantedIn(name)
		o.members[m] = s.ID
		d.want(m, key, o.content(s, shared))
	}
	room, completed := d.owners.replaced(key, o, shared)
	if d.affected = append(d.affected, room...); completed {
		d.complete()
	}
}

// Kept returns the set that a member should have of an ID, if the member has one of that ID. It is nil if the member
// has none, or if the set is Unchanged: then it is not known what the member has.
func (d *Store) Kept(id string, member types.NamespacedName) *set.Set {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.members[member]
	if m == nil || m.has[id] == nil {
		return nil
	}
	want := m.entry(id)
	if withdrawn := IsAbsent(want.set) && want.key == (Key{}); withdrawn || unchanged(want.set) {
		return nil
	}
	return want.set
}

// Forget drops the state of a member whose Cluster is being deleted. Nothing is sent there until an owner wants a set
// there again: its agent itself removes what is there, or keeps it.
func (d *Store) Forget(name types.NamespacedName) {
	d.mu.Lock()
	defer d.unlock()
	m := d.known(name)
	d.owners.forget(m)
	d.retries.clearAll(m)
	clear(m.wants)
	m.gone = true
	d.look(m)
	d.drop(m)
}

// Changed looks at a member's connection. It is for members.Registry.OnChange.
func (d *Store) Changed(name types.NamespacedName) {
	d.mu.Lock()
	defer d.unlock()
	if d.closed {
		return
	}
	m := d.known(name)
	d.look(m)
	d.drop(m)
}

// Size returns the number of members, and of sets that are wanted in them.
func (d *Store) Size() (members, sets int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for m := range maps.Values(d.members) {
		sets += len(m.wants)
	}
	return len(d.members), sets
}
