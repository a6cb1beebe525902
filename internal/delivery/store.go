// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package delivery brings sets to members: it knows what each is to have and what it has, and sends the difference.
//
// A Store runs on the leading manager. Nothing is dialled for a member that is not connected; what is wanted of it waits for the connection.
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
	// maxSends is how many sets are on their way to all members together, without those that take longer than slowSend: what hangs on
	// the way to some members must not keep others waiting.
	maxSends = 512
	// maxMemberSends is how many are on their way to one member. Its agent bounds what it does at once; it answers when a set is
	// stored, and applies many before it stores them.
	maxMemberSends = 256
	// maxMemberBytes is how much is on its way to one member, in bytes, if that is more than one set.
	maxMemberBytes = 4 << 20
	// slowSend is after how long a send no longer counts among maxSends.
	slowSend = 500 * time.Millisecond
)

// Members is what the store needs of the connected members.
type Members interface {
	State(types.NamespacedName) members.State
	// Leading leads to the agent that takes sets.
	Leading(types.NamespacedName) (http.RoundTripper, error)
	// TooFast turns a member away for a while whose agent says more of something than it may.
	TooFast(name types.NamespacedName, what string)
}

// Key names the object on the hub that sets are made of, among all that hand over sets. The store does not interpret it.
type Key struct {
	// Kind tells whose keys these are: OnResult listens by kind.
	Kind      string
	Namespace string
	Name      string
}

// String is for logs.
func (k Key) String() string { return k.Kind + " " + k.Namespace + "/" + k.Name }

// Options of a Store.
type Options struct {
	Members Members
	// Leaving is whether a member's Cluster is going, or gone: nothing is sent there any more. Nil means that none ever is.
	Leaving func(context.Context, types.NamespacedName) bool
	// ReadOnly reports whether the spec of a member's Cluster says that nothing is delivered there, whatever the agent says. What is there is
	// taken back. Call Store.Changed when it changes. Nil means that none ever does. It must not ask an API server.
	ReadOnly func(context.Context, types.NamespacedName) (bool, error)
	// Observer is told what is sent. Its functions may be nil.
	Observer Observer
	// Pause is how long the store waits after a first failure; it doubles up to maxPause. Zero means firstPause.
	Pause time.Duration
	Log   logr.Logger
}

// Observer is told what is sent, for metrics.
type Observer struct {
	// Sent is called after each set that was sent or removed: "put" or "delete", "ok" or "failed", and how long it took.
	Sent func(verb, result string, took time.Duration)
}

// Store knows what each member is to have and what it has, and sends the difference. New makes it; Start has it send. All methods may be
// called concurrently.
type Store struct {
	Options
	ctx   context.Context // of all that is under way; stop ends it
	stop  context.CancelFunc
	tasks sync.WaitGroup // streams, sends and retries

	mu       sync.Mutex // guards what follows and all members; never held during I/O
	started  time.Time  // when it began to send
	running  bool       // between the begin and the end of Start
	closed   bool
	members  map[types.NamespacedName]*member
	owners   map[Key]*owner
	expected map[Key]struct{} // those that have not handed over yet; nil before Expect
	handed   map[Key]struct{} // those that have before Expect; nil after
	complete bool
	sending  int       // sends that count among maxSends
	waiting  []*member // those that have something to send and wait until others have sent theirs
	result   map[string][]func(Key)
}

// owner is an object on the hub that has handed over sets.
type owner struct {
	members map[*member]string // the ID of the set that it has there
	sets    map[string]*Set    // by digest, so that members share them
}

// New makes a store that is told what is wanted and sends nothing before Start.
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

// OnResult has f called after something became known of what an object of a kind handed over. f must not block.
func (d *Store) OnResult(kind string, f func(Key)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.result[kind] = append(d.result[kind], f)
}

// Expect says which objects there are. When each of them, and each of before, has handed over once, the store is complete: from then on it
// removes from members what nobody wants there. Called again, it waits no longer for those that are gone since.
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

// handedLocked notes that an object has handed over.
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

// Complete is whether every object that there was has handed over.
func (d *Store) Complete() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.complete
}

// Replace says what an object wants in which members, one set in each. What it wanted before in others is removed there. It costs
// nothing where nothing changes. No two objects may want a set of one ID in one member: the later one has it.
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
	m.calmLocked(set.ID) // what was refused of another content is of no matter for this one
	m.touchLocked(set.ID, set.absent)
	d.pumpLocked(m)
}

func (d *Store) withdrawLocked(m *member, id string, key Key) {
	if m.wants[id].key != key {
		return // another one wants it there by now
	}
	delete(m.wants, id)
	m.calmLocked(id)
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

// dropLocked forgets a member of which nothing is left to know.
func (d *Store) dropLocked(m *member) {
	if d.running && len(m.wants) == 0 && m.stream == nil && len(m.sends) == 0 && !m.connected && d.members[m.name] == m {
		delete(d.members, m.name)
	}
}

// Forget drops all that is known of a member whose Cluster is going, and leaves it alone until something is wanted there again: its agent
// removes by itself what is there, or is to leave it.
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
		m.calmLocked(id)
	}
	m.wants, m.has, m.touched = map[string]wanted{}, map[string]*protocol.SetState{}, map[string]bool{}
	m.gone = true
	m.hangUpLocked()
	d.lookLocked(m)
	d.dropLocked(m)
}

// Start sends until ctx ends, and returns when nothing is under way any more.
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
			m.calmLocked(id)
		}
		m.hangUpLocked()
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

// notify tells the owner of a set that something became known of it. The caller holds no lock.
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

// Size is for how many members something is wanted, and how many sets that are in all.
func (d *Store) Size() (members, sets int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for m := range maps.Values(d.members) {
		sets += len(m.wants)
	}
	return len(d.members), sets
}
