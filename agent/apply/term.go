// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"github.com/drover-dev/drover/internal/expansion"
	"github.com/drover-dev/drover/internal/protocol"
)

const (
	// parallel is how many requests that apply something are under way to the API server at once.
	parallel = 16
	// parallelSaves is how many sets are stored at once. Of many sets that arrive together, most are applied before they are stored.
	parallelSaves = 4
	// settle is how long an event may wait for others: what is written comes back as an event too.
	settle = 10 * time.Millisecond
	// loadRetry is how long to wait before the stored sets are read again.
	loadRetry = time.Second
)

// set is a set in the member, from when it was first handed over until nothing of it is left.
type set struct {
	id    string
	label string
	turn  chan struct{} // has room for one: whoever puts something in has the set for itself, and what follows

	wanted   protocol.Set
	unsaved  *protocol.Set // what is wanted as it was sent, until it is stored
	kept     kept
	deleting bool
	dead     bool // taken away; another of the id is another set
	failures int  // passes in a row that left something wrong
	claimed  map[ref]bool
	budgets  map[ref]*budget
	quotas   *quotas // nil until it is known what is held
}

// quotas are what each namespace holds.
type quotas struct {
	held map[string]corev1.ResourceList
}

// take waits for the turn.
func (s *set) take(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *set) release() { <-s.turn }

// term is one time of leading.
type term struct {
	options   Options
	catalogue catalogue
	world     *world
	store     store
	board     *board
	agenda    *agenda
	slots     chan struct{}   // requests under way
	saves     chan struct{}   // sets that are being stored
	life      context.Context // of the term; what is begun for the hub goes on when the hub has gone
	ready     chan struct{}   // closed when it is known what is stored and what is there
	book      *book
}

// book is who wants and has what.
type book struct {
	mu      sync.Mutex // guards what follows
	closed  bool       // nothing is begun any more
	running sync.WaitGroup
	sets    map[string]*set
	ids     map[string]string          // by label
	project map[string]map[string]bool // ids of sets that look at a project's namespaces
	owners  map[ref]string             // id of the set that wants the object
	waiting map[ref]map[string]bool    // ids of sets that want it too
	applied map[ref]applied
	roles   roleSets
	unseen  map[string]bool // ids of stored sets that were not looked at in this term
}

func newTerm(life context.Context, o Options) *term {
	t := &term{
		options: o, catalogue: newCatalogue(), world: newWorld(), store: store{o.Secrets}, board: newBoard(), agenda: newAgenda(),
		slots: make(chan struct{}, parallel), saves: make(chan struct{}, parallelSaves), life: life, ready: make(chan struct{}),
		book: &book{
			sets: map[string]*set{}, ids: map[string]string{}, project: map[string]map[string]bool{}, owners: map[ref]string{},
			waiting: map[ref]map[string]bool{}, applied: map[ref]applied{}, roles: newRoleSets(), unseen: map[string]bool{},
		},
	}
	t.world.changed, t.world.moved = t.changed, t.moved
	return t
}

func (t *term) log() logr.Logger { return t.options.Log }

// run keeps sets true until the term's life ends.
func (t *term) run() {
	ctx := t.life
	var feeds sync.WaitGroup
	var all []*feed
	for _, k := range kinds() {
		f := newFeed(k, t.options.Objects, t.world, t.log())
		all = append(all, f)
		feeds.Go(func() { f.run(ctx) })
	}
	defer feeds.Wait()
	defer t.close()
	if !t.load(ctx) {
		return
	}
	for _, f := range all {
		select {
		case <-f.ready:
		case <-ctx.Done():
			return
		}
	}
	close(t.ready)
	t.offerLeft()
	t.board.sync()
	t.agenda.run(ctx, t.options.Now, t.look)
}

// close waits for what is under way.
func (t *term) close() {
	t.board.end()
	t.book.mu.Lock()
	t.book.closed = true
	t.book.mu.Unlock()
	t.book.running.Wait()
}

// begin runs something that close waits for, unless nothing is begun any more.
func (t *term) begin(f func()) bool {
	t.book.mu.Lock()
	defer t.book.mu.Unlock()
	if t.book.closed {
		return false
	}
	t.book.running.Go(f)
	return true
}

// load reads what is stored, and again until that succeeds or ctx ends.
func (t *term) load(ctx context.Context) bool {
	for {
		all, broken, err := t.store.load(ctx)
		for _, b := range broken {
			t.log().Error(b, "a stored set cannot be read: the hub sends it again")
		}
		if err == nil {
			for _, one := range all {
				t.adopt(one)
			}
			return true
		}
		t.log().Error(err, "waiting for stored sets")
		timer := time.NewTimer(loadRetry)
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
		}
	}
}

// adopt goes on with a stored set.
func (t *term) adopt(one saved) {
	id := one.set.ID
	s := t.set(id, true)
	s.wanted, s.kept = labelled(one.set), one.kept
	t.follow(s)
	t.book.mu.Lock()
	t.book.unseen[id] = true
	t.book.mu.Unlock()
	t.board.show(protocol.SetState{ID: id, Digest: one.set.Digest, Phase: protocol.SetPending})
	t.agenda.at(id, t.options.Now())
}

// set finds a set, or makes it.
func (t *term) set(id string, create bool) *set {
	t.book.mu.Lock()
	defer t.book.mu.Unlock()
	s := t.book.sets[id]
	if s == nil && create {
		s = &set{id: id, label: labelOf(id), turn: make(chan struct{}, 1), claimed: map[ref]bool{}, budgets: map[ref]*budget{}}
		t.book.sets[id] = s
		if _, taken := t.book.ids[s.label]; !taken || !strings.HasPrefix(id, leftPrefix) {
			t.book.ids[s.label] = id
		}
	}
	return s
}

// follow has a set looked at when the namespaces of its project change, and when the roles do that it binds. The caller has the turn.
func (t *term) follow(s *set) {
	t.book.mu.Lock()
	defer t.book.mu.Unlock()
	t.book.roles.follow(s)
	for project, ids := range t.book.project {
		if delete(ids, s.id); len(ids) == 0 {
			delete(t.book.project, project)
		}
	}
	if p := s.wanted.Content.PerNamespace; p != nil && !s.dead {
		if t.book.project[p.Project] == nil {
			t.book.project[p.Project] = map[string]bool{}
		}
		t.book.project[p.Project][s.id] = true
	}
}

// bury forgets a set that nothing is left of. The caller has the turn.
func (t *term) bury(s *set) {
	s.dead = true
	t.follow(s)
	t.unclaim(s, nil)
	t.book.mu.Lock()
	delete(t.book.sets, s.id)
	if t.book.ids[s.label] == s.id {
		delete(t.book.ids, s.label)
	}
	t.book.mu.Unlock()
	t.seen(s.id)
	t.board.remove(s.id)
}

// labelled is the set with its labels on all whole objects that Drover owns: what it holds can then be told from what it does not.
func labelled(s protocol.Set) protocol.Set {
	labels := expansion.Labels(s.ID)
	s.Content.Objects = slices.Clone(s.Content.Objects)
	for i, o := range s.Content.Objects {
		if o != nil && o.GetKind() != kindNamespace {
			o = o.DeepCopy()
			expansion.AddLabels(o, labels)
			s.Content.Objects[i] = o
		}
	}
	return s
}

// changed is told of each object that has, or had, something of ours.
func (t *term) changed(r ref, now object) {
	t.book.mu.Lock()
	defer t.book.mu.Unlock()
	id, wanted := t.book.owners[r]
	if wanted {
		last := t.book.applied[r]
		if !now.gone && now.mark == last.mark && now.added == last.added && (r.kind == kindNamespace || t.book.ids[now.set] == id) {
			return
		}
	} else if id = t.book.ids[now.set]; now.gone || now.deleting || now.mark == 0 {
		return
	}
	if id != "" {
		t.agenda.at(id, t.options.Now().Add(settle))
	}
}

// moved is told of projects whose namespaces changed.
func (t *term) moved(projects ...string) {
	t.book.mu.Lock()
	defer t.book.mu.Unlock()
	for _, project := range projects {
		for id := range t.book.project[project] {
			t.agenda.at(id, t.options.Now())
		}
	}
}

// claim makes an object the set's own; false if another one has it.
func (t *term) claim(r ref, s *set) (owner string, ok bool) {
	t.book.mu.Lock()
	defer t.book.mu.Unlock()
	owner, taken := t.book.owners[r]
	if taken && owner != s.id {
		if t.book.waiting[r] == nil {
			t.book.waiting[r] = map[string]bool{}
		}
		t.book.waiting[r][s.id] = true
		return owner, false
	}
	t.book.owners[r] = s.id
	s.claimed[r] = true
	return s.id, true
}

// unclaim gives up what the set no longer wants, and returns it.
func (t *term) unclaim(s *set, wanted map[ref]bool) (given []ref) {
	t.book.mu.Lock()
	defer t.book.mu.Unlock()
	for r := range s.claimed {
		if wanted[r] {
			continue
		}
		given = append(given, r)
		delete(s.claimed, r)
		delete(t.book.owners, r)
		delete(t.book.applied, r)
		delete(s.budgets, r)
		for id := range t.book.waiting[r] {
			t.agenda.at(id, t.options.Now())
		}
		delete(t.book.waiting, r)
		t.world.forget(r)
	}
	return given
}

// look has a set looked at in the background.
func (t *term) look(id string) {
	if id == strays {
		t.begin(func() { t.releaseStrays(t.life) })
		return
	}
	s := t.set(id, false)
	if s == nil {
		return
	}
	t.begin(func() {
		if s.take(t.life) != nil {
			return
		}
		defer s.release()
		if !s.dead && (s.wanted.ID != "" || s.deleting) { // else it is about to be stored
			t.pass(t.life, s)
		}
	})
}

// errEnded says that this replica no longer leads.
var errEnded = errors.New("this replica of the agent no longer leads")

// put takes a set over, applies and stores it. The error is errEnded.
func (t *term) put(ctx context.Context, wanted protocol.Set) (protocol.SetState, error) {
	s, err := t.hold(ctx, wanted.ID)
	if err != nil {
		return protocol.SetState{}, err
	}
	defer s.release()
	if s.wanted.Digest != wanted.Digest || s.deleting {
		s.wanted, s.unsaved, s.deleting, s.failures = labelled(wanted), &wanted, false, 0
		t.follow(s)
	}
	return t.pass(ctx, s), nil
}

// remove takes a set away. One that is not known may have left objects. The error is errEnded.
func (t *term) remove(ctx context.Context, id string) (protocol.SetState, error) {
	s, err := t.hold(ctx, id)
	if err != nil {
		return protocol.SetState{}, err
	}
	defer s.release()
	brought, _ := rolesOf(s)
	s.deleting = true
	t.follow(s)
	t.wakeBinders(brought...) // whoever makes a role of the name from now on must find none that is bound to it
	return t.pass(ctx, s), nil
}

// hold takes the set of an id, made if there is none. One that died while it was waited for is replaced.
func (t *term) hold(ctx context.Context, id string) (*set, error) {
	for {
		s := t.set(id, true)
		if err := s.take(ctx); err != nil {
			return nil, errEnded
		}
		if !s.dead {
			return s, nil
		}
		s.release()
	}
}

// all are all sets, those that guard the others last.
func (t *term) all() []*set {
	t.book.mu.Lock()
	defer t.book.mu.Unlock()
	ids := slices.Sorted(maps.Keys(t.book.sets))
	var sets, guards []*set
	for _, id := range ids {
		if id == protocol.SetGuards {
			guards = append(guards, t.book.sets[id])
			continue
		}
		sets = append(sets, t.book.sets[id])
	}
	return append(sets, guards...)
}
