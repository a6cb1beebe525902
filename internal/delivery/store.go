// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package delivery brings sets to members: it holds what each should have and what it has, and sends the difference.
//
// A Store runs on the leading manager. It sends nothing to a member that is not connected: its sets wait for the connection.
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

	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
)

// Bounds on what is under way at once.
const (
	// maxSends bounds the sends in progress to all members together. A send that takes longer than slowSend is not counted: slow members
	// must not block the others.
	maxSends = 512
	// maxMemberSends bounds the sends in progress to one member. Its agent has its own bound; it responds when a set is stored, and
	// applies many before it stores them.
	maxMemberSends = 256
	// maxMemberBytes bounds the bytes in progress to one member. One set may exceed it.
	maxMemberBytes = 4 << 20
	// slowSend is the time after which a send no longer counts towards maxSends.
	slowSend = 500 * time.Millisecond
)

// Members gives the store access to the connected members.
type Members interface {
	State(types.NamespacedName) members.State
	// Leading returns a transport to the agent that takes sets.
	Leading(types.NamespacedName) (http.RoundTripper, error)
	// TooFast disconnects a member for a while because its agent sends more events than it may.
	TooFast(name types.NamespacedName, what string)
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
	Members Members
	// Leaving reports whether a member's Cluster is being deleted or gone: nothing more is sent there. Nil means never.
	Leaving func(context.Context, types.NamespacedName) bool
	// ReadOnly reports whether the spec of a member's Cluster has the profile ReadOnly. Then nothing is delivered, whatever the agent reports,
	// and what is there is removed. Call Store.Changed when it changes. Nil means never. It must not call an API server.
	ReadOnly func(context.Context, types.NamespacedName) (bool, error)
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
}

// Store holds what each member should have and what it has. It sends the difference after Start. All methods may be called concurrently.
type Store struct {
	Options
	ctx   context.Context // of all tasks; stop ends it
	stop  context.CancelFunc
	tasks sync.WaitGroup // streams, sends and retries

	mu       sync.Mutex // guards what follows and all members; never held during I/O
	started  time.Time  // when Start was called
	running  bool       // while Start runs
	closed   bool
	members  map[types.NamespacedName]*member
	owners   map[Key]*owner
	expected map[Key]struct{} // owners without a call of Replace yet; nil before Expect
	handed   map[Key]struct{} // owners with a call of Replace before Expect; nil after Expect
	complete bool
	sending  int       // sends that count towards maxSends
	waiting  []*member // members with something to send while maxSends is reached
	result   map[string][]func(Key)
}

// owner is an object on the hub that owns sets.
type owner struct {
	members map[*member]string // the ID of its set there
	sets    map[string]*Set    // by digest, so that members share them
}

// New returns a store. It accepts sets at once, and sends nothing before Start.
func New(o Options) *Store {
	if o.Pause == 0 {
		o.Pause = firstPause
	}
	ctx, stop := context.WithCancel(context.Background())
	return &Store{
		Options: o, ctx: ctx, stop: stop, members: map[types.NamespacedName]*member{}, owners: map[Key]*owner{},
		handed: map[Key]struct{}{}, result: map[string][]func(Key){},
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
	d.completeLocked()
}

// handedLocked notes that Replace was called for an owner.
func (d *Store) handedLocked(key Key) {
	switch {
	case d.handed != nil:
		d.handed[key] = struct{}{}
	case !d.complete:
		delete(d.expected, key)
		d.completeLocked()
	}
}

func (d *Store) completeLocked() {
	if d.complete || len(d.expected) > 0 {
		return
	}
	d.complete = true
	for _, m := range d.members {
		for id := range m.has {
			m.touchLocked(id, false)
		}
		d.pumpLocked(m)
	}
}

// Complete reports whether Replace was called for every expected owner.
func (d *Store) Complete() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.complete
}

// Replace sets what an owner wants in which members, one set in each. Its sets in other members are removed. Unchanged sets cost nothing.
// Two owners must not want a set of one ID in one member; if they do, the later one owns it.
func (d *Store) Replace(key Key, sets map[types.NamespacedName]*Set) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	o := d.owners[key]
	if o == nil {
		o = &owner{members: map[*member]string{}, sets: map[string]*Set{}}
		d.owners[key] = o
	}
	for m, id := range o.members {
		if set := sets[m.name]; set == nil || set.ID != id {
			delete(o.members, m)
			d.withdrawLocked(m, id, key)
		}
	}
	shared := make(map[string]*Set, 1)
	for name, set := range sets {
		if known := o.sets[set.Digest]; known != nil && known.ID == set.ID {
			set = known
		}
		shared[set.Digest] = set
		o.sets[set.Digest] = set
		m := d.memberLocked(name)
		o.members[m] = set.ID
		d.wantLocked(m, key, set)
	}
	if o.sets = shared; len(o.members) == 0 {
		delete(d.owners, key)
	}
	d.handedLocked(key)
}

func (d *Store) wantLocked(m *member, key Key, set *Set) {
	was, known := m.wants[set.ID]
	if known && was.set == set && was.key == key {
		return
	}
	m.wants[set.ID] = wanted{key: key, set: set, since: was.since}
	if known && was.set.Digest == set.Digest {
		return
	}
	m.wants[set.ID] = wanted{key: key, set: set, since: time.Now()}
	m.clearFailureLocked(set.ID) // a failure of other content does not matter for this one
	m.touchLocked(set.ID, set.absent)
	d.pumpLocked(m)
}

func (d *Store) withdrawLocked(m *member, id string, key Key) {
	if m.wants[id].key != key {
		return // another owner wants it there now
	}
	delete(m.wants, id)
	m.clearFailureLocked(id)
	m.touchLocked(id, true)
	d.pumpLocked(m)
	d.dropLocked(m)
}

func (d *Store) memberLocked(name types.NamespacedName) *member {
	m := d.members[name]
	if m == nil || m.gone {
		m = newMember(name)
		d.members[name] = m
		d.lookLocked(m)
	}
	return m
}

// dropLocked forgets a member without state.
func (d *Store) dropLocked(m *member) {
	if d.running && len(m.wants) == 0 && m.stream == nil && len(m.sends) == 0 && !m.connected && d.members[m.name] == m {
		delete(d.members, m.name)
	}
}

// Forget drops the state of a member whose Cluster is being deleted. Nothing is sent there until an owner wants a set there again: its agent
// itself removes what is there, or keeps it.
func (d *Store) Forget(name types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.members[name]
	if m == nil {
		m = newMember(name)
		d.members[name] = m
	}
	for id, w := range m.wants {
		if o := d.owners[w.key]; o != nil {
			delete(o.members, m)
		}
		m.clearFailureLocked(id)
	}
	m.wants, m.has, m.touched = map[string]wanted{}, map[string]*protocol.SetState{}, map[string]bool{}
	m.gone = true
	m.closeStreamLocked()
	d.lookLocked(m)
	d.dropLocked(m)
}

// Start sends until ctx ends, and returns when nothing is in progress.
func (d *Store) Start(ctx context.Context) error {
	d.mu.Lock()
	d.running, d.started = true, time.Now()
	var lacking []Key
	for _, m := range d.members {
		lacking = append(lacking, d.lookLocked(m)...)
		d.dropLocked(m)
	}
	d.mu.Unlock()
	d.notify(lacking...)
	<-ctx.Done()
	d.mu.Lock()
	d.running, d.closed = false, true
	for _, m := range d.members {
		for id := range m.failed {
			m.clearFailureLocked(id)
		}
		m.closeStreamLocked()
	}
	d.mu.Unlock()
	d.stop()
	d.tasks.Wait()
	return nil
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
		m = newMember(name)
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
