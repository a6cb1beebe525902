// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package delivery compares the sets that each member should have with the sets that it has, and sends the changes.
//
// A Store runs on the leading manager. It is a controller whose requests each identify a member and a set. The store
// sends no sets to a disconnected member. When a member connects, the store queues the member's sets.
package delivery

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/drover-dev/drover/internal/checkpoint"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/set"
)

// Key identifies an object on the hub that owns sets. The store does not interpret keys.
type Key struct {
	// Kind is the kind of the owner. OnResult registers functions by kind.
	Kind      string
	Namespace string
	Name      string
}

// String formats the key for logs.
func (k Key) String() string { return k.Kind + " " + k.Namespace + "/" + k.Name }

// Options configures a Store.
type Options struct {
	// State returns the state of a member.
	State func(member types.NamespacedName) members.State
	// Leading returns a transport to the agent replica that accepts a member's sets.
	Leading func(member types.NamespacedName) (http.RoundTripper, error)
	// Leaving reports whether a member's Cluster is being deleted or no longer exists. If so, nothing more is sent to
	// the member. If Leaving is nil, no Cluster counts as leaving.
	Leaving func(context.Context, types.NamespacedName) bool
	// ReadOnly reports whether the spec of a member's Cluster has the ReadOnly profile. If so, no sets are delivered,
	// regardless of the agent's reports, and existing sets are removed. Store.Changed must be called when the profile
	// changes. If ReadOnly is nil, no member is read-only. The function must not call an API server.
	ReadOnly func(context.Context, types.NamespacedName) (bool, error)
	// Restore determines which changes wait for confirmation after the hub's etcd was restored. With the zero value, no
	// changes wait.
	Restore checkpoint.Policy
	// Observer is notified of sends. Its functions may be nil.
	Observer Observer
	// Pause is the delay before a retry after the first failure. The delay doubles with each failure, up to maxPause.
	// The default is firstPause.
	Pause time.Duration
	Log   logr.Logger
}

// Observer is notified of sends, for metrics.
type Observer struct {
	// Sent is called after each send or removal. Its arguments are "put" or "delete", "ok" or "failed", and the
	// duration of the send.
	Sent func(verb, result string, took time.Duration)
	// Awaited is called every few seconds with the owners for which the store is waiting, until the store is complete.
	// In the last call, there are no owners.
	Awaited func([]Key)
}

// Deliverer delivers sets to members and reports the outcomes. A Store implements it.
type Deliverer interface {
	Replace(Key, map[types.NamespacedName]*set.Set)
	Outcomes(id string, members []types.NamespacedName) []Outcome
}

// Store holds the sets that each member should have and the sets that it has, and sends the changes once Start has been
// called. It is safe for concurrent use.
type Store struct {
	Options
	ctx   context.Context // the context of all sends; stop cancels it
	stop  context.CancelFunc
	sends sync.WaitGroup

	// mu guards state. state is used only between calls to lock and unlock. The lock is never held during I/O.
	mu    sync.Mutex
	state guarded
}

// guarded is the part of a Store that the Store's lock guards. The methods of guarded, member, owners and retries
// require that the caller holds the lock.
type guarded struct {
	options  *Options
	ctx      context.Context                              // the context of all sends
	started  time.Time                                    // when Start was called
	queue    workqueue.TypedRateLimitingInterface[target] // nil unless Start is running
	closed   bool
	retries  retries
	members  map[types.NamespacedName]*member
	owners   owners
	result   map[string][]func(Key)
	affected []Key // owners that unlock will notify
}

// New returns a Store. It accepts sets immediately, but sends nothing until Start is called.
func New(o Options) *Store {
	if o.Pause == 0 {
		o.Pause = firstPause
	}
	ctx, stop := context.WithCancel(context.Background())
	d := &Store{Options: o, ctx: ctx, stop: stop}
	d.state = guarded{
		options: &d.Options, ctx: ctx, result: map[string][]func(Key){},
		members: map[types.NamespacedName]*member{},
		owners:  owners{all: map[Key]*owner{}, early: map[Key]struct{}{}},
		retries: retries{workqueue.NewTypedItemExponentialFailureRateLimiter[target](o.Pause, maxPause)},
	}
	return d
}

// lock returns the guarded state. The caller must call unlock.
func (d *Store) lock() *guarded {
	d.mu.Lock()
	return &d.state
}

// unlock releases the lock, and then notifies the owners that were affected while the lock was held.
func (d *Store) unlock() {
	var calls []func()
	for _, key := range d.state.affected {
		for _, f := range d.state.result[key.Kind] {
			calls = append(calls, func() { f(key) })
		}
	}
	d.state.affected = nil
	d.mu.Unlock()
	for _, call := range calls {
		call()
	}
}

// OnResult registers a function for the owners of one kind. The function is called with an owner after the outcome of
// one of the owner's sets has changed. It must not block.
func (d *Store) OnResult(kind string, f func(Key)) {
	g := d.lock()
	defer d.unlock()
	g.result[kind] = append(g.result[kind], f)
}

// Expect sets the list of owners that exist on the hub. Once all of them have declared their sets with Replace, the
// store is complete and starts removing sets without an owner from members. A second call drops owners that no longer
// exist.
func (d *Store) Expect(keys []Key) {
	g := d.lock()
	defer d.unlock()
	if g.owners.expect(keys) {
		g.complete()
	}
}

// complete checks all members again, because the store has become complete.
func (g *guarded) complete() {
	for _, m := range g.members {
		maps.DeleteFunc(m.wants, func(_ string, w *wanted) bool { return w.key == Key{} })
		g.examine(m)
		g.enqueueAll(m)
	}
}

// Complete reports whether Replace was called for every expected owner.
func (d *Store) Complete() bool {
	g := d.lock()
	defer d.unlock()
	return g.owners.complete
}

// Awaited returns the expected owners for which Replace has not been called yet, sorted. It returns nil if the store is
// complete or Expect has not been called yet.
func (d *Store) Awaited() []Key {
	g := d.lock()
	defer d.unlock()
	if g.owners.complete {
		return nil
	}
	return slices.SortedFunc(maps.Keys(g.owners.expected), func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// Replace declares the sets that an owner requires, at most one in each member. All of them have the same ID. The
// owner's sets in all other members are removed. Declaring an unchanged set again is cheap. Two owners must not declare
// sets with the same ID for the same member. If they do, the set belongs to the owner that declared it last.
func (d *Store) Replace(key Key, sets map[types.NamespacedName]*set.Set) {
	g := d.lock()
	defer d.unlock()
	if g.closed {
		return
	}
	sets = g.owners.bound(key, sets)
	o := g.owners.get(key)
	for m := range o.members {
		if s := sets[m.name]; s == nil || s.ID != o.id {
			delete(o.members, m)
			g.withdraw(m, o.id, key)
		}
	}
	shared, entries := make(map[string]content, 1), map[content]*wanted{}
	for name, s := range sets {
		m, c := g.wantedIn(name), o.content(s, shared)
		o.members[m], o.id = struct{}{}, c.set.ID
		if was := m.entry(c.set.ID); was.content == c && was.key == key {
			continue
		}
		if entries[c] == nil {
			entries[c] = &wanted{key: key, content: c, since: time.Now()}
		}
		g.want(m, entries[c])
	}
	room, completed := g.owners.replaced(key, o, shared)
	if g.affected = append(g.affected, room...); completed {
		g.complete()
	}
}

// Kept returns the set with the given ID that a member should have. It returns nil if the member has no set with this
// ID. It also returns nil if the required set is Unchanged, because the content of the member's set is not known.
func (d *Store) Kept(id string, member types.NamespacedName) *set.Set {
	g := d.lock()
	defer d.unlock()
	m := g.members[member]
	if m == nil || m.has[id] == nil {
		return nil
	}
	want := m.entry(id)
	if withdrawn := IsAbsent(want.set) && want.key == (Key{}); withdrawn || unchanged(want.set) {
		return nil
	}
	return want.set
}

// Forget drops the state of a member whose Cluster is being deleted. Nothing is sent to the member until an owner
// declares a set for it again. The agent itself decides whether to remove its objects.
func (d *Store) Forget(name types.NamespacedName) {
	g := d.lock()
	defer d.unlock()
	m := g.known(name)
	g.owners.forget(m)
	g.retries.clearAll(m)
	clear(m.wants)
	m.forgotten = true
	g.look(m)
	g.drop(m)
}

// Changed makes the store check a member's connection again. It can be passed to members.Registry.OnChange.
func (d *Store) Changed(name types.NamespacedName) {
	g := d.lock()
	defer d.unlock()
	if g.closed {
		return
	}
	m := g.known(name)
	g.look(m)
	g.drop(m)
}

// Size returns the number of members and the number of required sets in them.
func (d *Store) Size() (members, sets int) {
	g := d.lock()
	defer d.unlock()
	for m := range maps.Values(g.members) {
		sets += len(m.wants)
	}
	return len(g.members), sets
}
