// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package delivery brings sets to members: it holds what each should have and what it has, and sends the difference.
//
// A Store runs on the leading manager: a controller whose requests are a member and the ID of a set. It sends nothing to a member that is not
// connected; the connection puts its sets into the queue.
package delivery

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

// Deliverer brings sets to members, and reports how far it has got. Store is one.
type Deliverer interface {
	Replace(Key, map[types.NamespacedName]*set.Set)
	Outcomes(id string, members []types.NamespacedName) []Outcome
	Remains(id string, members []types.NamespacedName) (held, away, unreported int)
	Kept(id string, member types.NamespacedName) *set.Set
	Changed(types.NamespacedName)
	Forget(types.NamespacedName)
}

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
	// ReadOnly reports whether the spec of a member's Cluster has the profile ReadOnly. Then nothing is delivered, whatever the agent reports,
	// and what is there is removed. Call Store.Changed when it changes. Nil means never. It must not call an API server.
	ReadOnly func(context.Context, types.NamespacedName) (bool, error)
	// Checkpoint returns what is sent along with each set, see package checkpoint. Empty for nothing. Nil means always empty.
	Checkpoint func() string
	// Restored returns the checkpoint for whose confirmation by an administrator a member waits, by the one that its agent has, empty for none: the hub does not
	// remember it. Then nothing is sent or removed there. Empty if the member waits for nothing. Nil means always empty. It must not call an API server.
	Restored func(ctx context.Context, member types.NamespacedName, checkpoint string) (waitsFor string)
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
	// Awaited is called with the owners that the store waits for, while it is not complete: every few seconds, and at last with none.
	Awaited func([]Key)
}

// Store holds what each member should have and what it has. It sends the difference after Start. All methods may be called concurrently.
type Store struct {
	Options
	ctx   context.Context // of all tasks; stop ends it
	stop  context.CancelFunc
	tasks sync.WaitGroup // sends

	mu       sync.Mutex                                   // guards what follows and all members; never held during I/O
	started  time.Time                                    // when Start was called
	queue    workqueue.TypedRateLimitingInterface[target] // nil unless Start runs
	closed   bool
	backoff  workqueue.TypedRateLimiter[target] // of failures
	members  map[types.NamespacedName]*memberSets
	owners   map[Key]*owner
	expected map[Key]struct{} // owners without a call of Replace yet; nil before Expect
	handed   map[Key]struct{} // owners with a call of Replace before Expect; nil after Expect
	complete bool
	result   map[string][]func(Key)
}

// owner is an object on the hub that owns sets.
type owner struct {
	members map[*memberSets]string // the ID of its set there
	sets    map[string]content     // by digest, so that members share them
}

// New returns a store. It accepts sets at once, and sends nothing before Start.
func New(o Options) *Store {
	if o.Pause == 0 {
		o.Pause = firstPause
	}
	ctx, stop := context.WithCancel(context.Background())
	return &Store{
		Options: o, ctx: ctx, stop: stop, members: map[types.NamespacedName]*memberSets{}, owners: map[Key]*owner{},
		handed: map[Key]struct{}{}, result: map[string][]func(Key){},
		backoff: workqueue.NewTypedItemExponentialFailureRateLimiter[target](o.Pause, maxPause),
	}
}

// OnResult calls f after the outcome of a set changed, for owners of one kind. f must not block.
func (d *Store) OnResult(kind string, f func(Key)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.result[kind] = append(d.result[kind], f)
}

// Expect says which owners exist. When Replace was called for each of them, the store is complete: from then on it removes from members the
// sets that have no owner. A second call drops the owners that are gone since the first.
func (d *Store) Expect(keys []Key) {
	d.notify(d.expect(keys)...)
}

// expect returns the owners that may find something new.
func (d *Store) expect(keys []Key) []Key {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.expected
	d.expected = make(map[Key]struct{}, len(keys))
	for _, key := range keys {
		_, done := d.handed[key]
		if _, still := before[key]; still || before == nil && !done {
			d.expected[key] = struct{}{}
		}
	}
	d.handed = nil
	return d.completeLocked()
}

// handedLocked notes that Replace was called for an owner, and returns the owners that may find something new.
func (d *Store) handedLocked(key Key) []Key {
	switch {
	case d.handed != nil:
		d.handed[key] = struct{}{}
	case !d.complete:
		delete(d.expected, key)
		return d.completeLocked()
	}
	return nil
}

// completeLocked returns the owners of guards in the members of which it is known now what waits for a confirmation.
func (d *Store) completeLocked() (known []Key) {
	if d.complete || len(d.expected) > 0 {
		return nil
	}
	d.complete = true
	for _, m := range d.members {
		maps.DeleteFunc(m.wants, func(_ string, w *wanted) bool { return w.key == Key{} })
		if d.examineLocked(m) {
			known = append(known, guardsOf(m))
		}
		d.enqueueAllLocked(m)
	}
	return known
}

// Complete reports whether Replace was called for every expected owner.
func (d *Store) Complete() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.complete
}

// Replace sets what an owner wants in which members, one set in each. Its sets in other members are removed. Unchanged sets cost nothing.
// Two owners must not want a set of one ID in one member; if they do, the later one owns it.
func (d *Store) Replace(key Key, sets map[types.NamespacedName]*set.Set) {
	d.notify(d.replace(key, sets)...)
}

// replace returns the owners for whose sets there may be room now.
func (d *Store) replace(key Key, sets map[types.NamespacedName]*set.Set) (waiting []Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	sets = d.boundLocked(key, sets)
	o := d.owners[key]
	if o == nil {
		o = &owner{members: map[*memberSets]string{}, sets: map[string]content{}}
		d.owners[key] = o
	}
	for m, id := range o.members {
		if s := sets[m.name]; s == nil || s.ID != id {
			delete(o.members, m)
			d.withdrawLocked(m, id, key)
		}
	}
	shared := make(map[string]content, 1)
	for name, s := range sets {
		c, known := shared[s.Digest]
		if !known || c.set.ID != s.ID {
			if c, known = o.sets[s.Digest]; !known || c.set.ID != s.ID {
				c = newContent(s)
			}
			shared[s.Digest] = c
		}
		m := d.memberLocked(name)
		o.members[m] = s.ID
		d.wantLocked(m, key, c)
	}
	before := o.large()
	if o.sets = shared; len(o.members) == 0 {
		delete(d.owners, key)
	}
	if o.large() < before {
		waiting = d.excessiveLocked(key.Namespace)
	}
	return append(waiting, d.handedLocked(key)...)
}

// Kept returns the set that a member should have of an ID, if the member has one of that ID. It is nil if the member has none, or if the set
// is Unchanged: then it is not known what the member has.
func (d *Store) Kept(id string, member types.NamespacedName) *set.Set {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.members[member]
	if m == nil || m.has[id] == nil || unchanged(m.entryLocked(id).set) || IsAbsent(m.entryLocked(id).set) && m.entryLocked(id).key == (Key{}) { // that was withdrawn
		return nil
	}
	return m.entryLocked(id).set
}

func (d *Store) wantLocked(m *memberSets, key Key, c content) {
	id := c.set.ID
	was, known := m.entryLocked(id), m.wants[id] != nil
	if known && was.set == c.set && was.key == key {
		return
	}
	delete(m.withdrawn, id)
	m.wants[id] = &wanted{key: key, content: c, since: was.since}
	if known && was.set.Digest == c.set.Digest {
		return
	}
	m.wants[id] = &wanted{key: key, content: c, since: time.Now()}
	d.clearFailureLocked(m, id) // a failure of other content does not matter for this one
	d.differsLocked(m)
	d.enqueueLocked(m, id)
}

func (d *Store) withdrawLocked(m *memberSets, id string, key Key) {
	if m.entryLocked(id).key != key {
		return // another owner wants it there now
	}
	delete(m.wants, id)
	d.withdrewLocked(m, id, key)
	d.clearFailureLocked(m, id)
	if !d.complete {
		m.wants[id] = &wanted{content: content{set: Absent(id)}}
	}
	d.differsLocked(m)
	d.enqueueLocked(m, id)
	d.dropLocked(m)
}

func (d *Store) memberLocked(name types.NamespacedName) *memberSets {
	was := d.members[name]
	if was != nil && !was.gone {
		return was
	}
	m := newMemberSets(name)
	if was != nil { // its agent goes on to report
		m.has, m.synced, m.reported, m.confirmation = was.has, was.synced, was.reported, was.confirmation
		was.has = map[string]*protocol.SetState{}
	}
	d.members[name] = m
	d.lookLocked(m)
	return m
}

// dropLocked forgets a member without state.
func (d *Store) dropLocked(m *memberSets) {
	if d.queue != nil && len(m.wants) == 0 && !m.synced && len(m.sends) == 0 && !m.connected && d.members[m.name] == m {
		delete(d.members, m.name)
		d.clearFailuresLocked(m)
	}
}

// Forget drops the state of a member whose Cluster is being deleted. Nothing is sent there until an owner wants a set there again: its agent
// itself removes what is there, or keeps it.
func (d *Store) Forget(name types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.members[name]
	if m == nil {
		m = newMemberSets(name)
		d.members[name] = m
	}
	for _, w := range m.wants {
		if o := d.owners[w.key]; o != nil {
			delete(o.members, m)
		}
	}
	d.clearFailuresLocked(m)
	clear(m.wants)
	m.gone = true
	d.lookLocked(m)
	d.dropLocked(m)
}

// Changed looks at a member's connection. It is for members.Registry.OnChange.
func (d *Store) Changed(name types.NamespacedName) {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return
	}
	m := d.members[name]
	if m == nil {
		m = newMemberSets(name)
		d.members[name] = m
	}
	lacking := d.lookLocked(m)
	d.dropLocked(m)
	d.mu.Unlock()
	d.notify(lacking...)
}

// notify calls the functions of OnResult for the owners. The caller holds no lock.
func (d *Store) notify(keys ...Key) {
	for _, key := range keys {
		d.mu.Lock()
		listeners := slices.Clone(d.result[key.Kind])
		d.mu.Unlock()
		for _, f := range listeners {
			f(key)
		}
	}
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
