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
	// parallel bounds the apply requests in flight.
	parallel = 16
	// parallelSaves bounds the sets that are being stored. When many sets arrive together, most are applied before they are stored.
	parallelSaves = 4
	// settle delays the pass after an event, so that one pass handles several events. Own writes are events too.
	settle = 10 * time.Millisecond
	// loadRetry is the wait before the stored sets are read again after an error.
	loadRetry = time.Second
)

// set is a set in the member, from when the hub first sent it until all of its objects are removed.
type set struct {
	id    string
	label string
	busy  chan struct{} // buffered: 1; a goroutine that sends to it owns the set and the fields below

	wanted   protocol.Set
	unsaved  *protocol.Set // wanted as the hub sent it, until it is stored
	kept     kept
	deleting bool
	dead     bool // removed; a later set with the same id is another object
	failures int  // passes in a row that had problems
	claimed  map[ref]bool
	budgets  map[ref]*budget
	quotas   *quotas // nil until they were read
}

// quotas holds the quota of each namespace.
type quotas struct {
	held map[string]corev1.ResourceList
}

// acquire waits until the caller owns the set.
func (s *set) acquire(ctx context.Context) error {
	select {
	case s.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *set) release() { <-s.busy }

// leadership is the state of a replica while it leads.
type leadership struct {
	options   Options
	catalogue catalogue
	cache     *objectCache
	store     store
	publisher *publisher
	queue     *queue
	slots     chan struct{}   // bounds the apply requests in flight
	saves     chan struct{}   // bounds the sets that are being stored
	ctx       context.Context // ends with the leadership; work for the hub continues when the hub disconnects
	ready     chan struct{}   // closed when the stored sets and the objects in the member are known
	state     *state
}

// state indexes the sets and the objects that they own.
type state struct {
	mu      sync.Mutex // guards what follows
	closed  bool       // nothing new is started
	running sync.WaitGroup
	sets    map[string]*set
	ids     map[string]string          // by label
	project map[string]map[string]bool // ids of sets that depend on the namespaces of a project
	owners  map[ref]string             // id of the set that wants the object
	waiting map[ref]map[string]bool    // ids of sets that want it too
	applied map[ref]applied
	roles   roleSets
	unseen  map[string]bool // ids of stored sets that have had no pass since this replica leads
}

func newLeadership(ctx context.Context, o Options) *leadership {
	l := &leadership{
		options: o, catalogue: newCatalogue(), cache: newObjectCache(), store: store{o.Secrets}, publisher: newPublisher(), queue: newQueue(),
		slots: make(chan struct{}, parallel), saves: make(chan struct{}, parallelSaves), ctx: ctx, ready: make(chan struct{}),
		state: &state{
			sets: map[string]*set{}, ids: map[string]string{}, project: map[string]map[string]bool{}, owners: map[ref]string{},
			waiting: map[ref]map[string]bool{}, applied: map[ref]applied{}, roles: newRoleSets(), unseen: map[string]bool{},
		},
	}
	l.cache.changed, l.cache.moved = l.changed, l.moved
	return l
}

func (l *leadership) log() logr.Logger { return l.options.Log }

// run keeps sets applied until the leadership ends.
func (l *leadership) run() {
	ctx := l.ctx
	var feeds sync.WaitGroup
	var all []*feed
	for _, k := range kinds() {
		f := newFeed(k, l.options.Objects, l.cache, l.log())
		all = append(all, f)
		feeds.Go(func() { f.run(ctx) })
	}
	defer feeds.Wait()
	defer l.close()
	if !l.load(ctx) {
		return
	}
	for _, f := range all {
		select {
		case <-f.ready:
		case <-ctx.Done():
			return
		}
	}
	close(l.ready)
	l.offerLeft()
	l.publisher.setSynced()
	l.queue.run(ctx, l.options.Now, l.process)
}

// close waits for what is running.
func (l *leadership) close() {
	l.publisher.end()
	l.state.mu.Lock()
	l.state.closed = true
	l.state.mu.Unlock()
	l.state.running.Wait()
}

// begin runs f in the background, and close waits for it. It returns false after close.
func (l *leadership) begin(f func()) bool {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	if l.state.closed {
		return false
	}
	l.state.running.Go(f)
	return true
}

// load reads the stored sets, and retries until that succeeds or ctx ends.
func (l *leadership) load(ctx context.Context) bool {
	for {
		all, broken, err := l.store.load(ctx)
		for _, b := range broken {
			l.log().Error(b, "a stored set cannot be read: the hub sends it again")
		}
		if err == nil {
			for _, one := range all {
				l.adopt(one)
			}
			return true
		}
		l.log().Error(err, "waiting for stored sets")
		timer := time.NewTimer(loadRetry)
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
		}
	}
}

// adopt takes over a stored set.
func (l *leadership) adopt(one saved) {
	id := one.set.ID
	s := l.set(id, true)
	s.wanted, s.kept = labelled(one.set), one.kept
	l.follow(s)
	l.state.mu.Lock()
	l.state.unseen[id] = true
	l.state.mu.Unlock()
	l.publisher.publish(protocol.SetState{ID: id, Digest: one.set.Digest, Phase: protocol.SetPending})
	l.queue.addAt(id, l.options.Now())
}

// set returns the set with an id, and creates it on request.
func (l *leadership) set(id string, create bool) *set {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	s := l.state.sets[id]
	if s == nil && create {
		s = &set{id: id, label: labelOf(id), busy: make(chan struct{}, 1), claimed: map[ref]bool{}, budgets: map[ref]*budget{}}
		l.state.sets[id] = s
		if _, taken := l.state.ids[s.label]; !taken || !strings.HasPrefix(id, leftPrefix) {
			l.state.ids[s.label] = id
		}
	}
	return s
}

// follow makes changes of the namespaces of its project, and of the roles that it binds, queue the set. The caller has acquired the set.
func (l *leadership) follow(s *set) {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	l.state.roles.follow(s)
	for project, ids := range l.state.project {
		if delete(ids, s.id); len(ids) == 0 {
			delete(l.state.project, project)
		}
	}
	if p := s.wanted.Content.PerNamespace; p != nil && !s.dead {
		if l.state.project[p.Project] == nil {
			l.state.project[p.Project] = map[string]bool{}
		}
		l.state.project[p.Project][s.id] = true
	}
}

// forget removes a set that has no objects left. The caller has acquired the set.
func (l *leadership) forget(s *set) {
	s.dead = true
	l.follow(s)
	l.unclaim(s, nil)
	l.state.mu.Lock()
	delete(l.state.sets, s.id)
	if l.state.ids[s.label] == s.id {
		delete(l.state.ids, s.label)
	}
	l.state.mu.Unlock()
	l.seen(s.id)
	l.publisher.remove(s.id)
}

// labelled returns the set with its labels on all objects that Drover owns entirely. The labels identify objects that leave the set.
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

// changed is called for each object that has, or had, fields of ours.
func (l *leadership) changed(r ref, now object) {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	id, wanted := l.state.owners[r]
	if wanted {
		last := l.state.applied[r]
		if !now.gone && now.mark == last.mark && now.added == last.added && (r.kind == kindNamespace || l.state.ids[now.set] == id) {
			return
		}
	} else if id = l.state.ids[now.set]; now.gone || now.deleting || now.mark == 0 {
		return
	}
	if id != "" {
		l.queue.addAt(id, l.options.Now().Add(settle))
	}
}

// moved is called for projects whose namespaces changed.
func (l *leadership) moved(projects ...string) {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	for _, project := range projects {
		for id := range l.state.project[project] {
			l.queue.addAt(id, l.options.Now())
		}
	}
}

// process runs a pass of a set in the background.
func (l *leadership) process(id string) {
	if id == orphans {
		l.begin(func() { l.releaseOrphans(l.ctx) })
		return
	}
	s := l.set(id, false)
	if s == nil {
		return
	}
	l.begin(func() {
		if s.acquire(l.ctx) != nil {
			return
		}
		defer s.release()
		if !s.dead && (s.wanted.ID != "" || s.deleting) { // otherwise put has created it and has not set it yet
			l.pass(l.ctx, s)
		}
	})
}

// errEnded is returned when this replica no longer leads.
var errEnded = errors.New("this replica of the agent no longer leads")

// put accepts a set, applies and stores it. The error is errEnded.
func (l *leadership) put(ctx context.Context, wanted protocol.Set) (protocol.SetState, error) {
	s, err := l.acquire(ctx, wanted.ID)
	if err != nil {
		return protocol.SetState{}, err
	}
	defer s.release()
	if s.wanted.Digest != wanted.Digest || s.deleting {
		s.wanted, s.unsaved, s.deleting, s.failures = labelled(wanted), &wanted, false, 0
		l.follow(s)
	}
	return l.pass(ctx, s), nil
}

// remove removes a set. A set that is not known may have objects, too. The error is errEnded.
func (l *leadership) remove(ctx context.Context, id string) (protocol.SetState, error) {
	s, err := l.acquire(ctx, id)
	if err != nil {
		return protocol.SetState{}, err
	}
	defer s.release()
	brought, _ := rolesOf(s)
	s.deleting = true
	l.follow(s)
	l.wakeBinders(brought...) // a role that another client creates under this name must not find a binding to it
	return l.pass(ctx, s), nil
}

// acquire returns the set with an id, owned by the caller. It creates the set if there is none, or if it was removed during the wait.
func (l *leadership) acquire(ctx context.Context, id string) (*set, error) {
	for {
		s := l.set(id, true)
		if err := s.acquire(ctx); err != nil {
			return nil, errEnded
		}
		if !s.dead {
			return s, nil
		}
		s.release()
	}
}

// all returns all sets, the guards last.
func (l *leadership) all() []*set {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	ids := slices.Sorted(maps.Keys(l.state.sets))
	var sets, guards []*set
	for _, id := range ids {
		if id == protocol.SetGuards {
			guards = append(guards, l.state.sets[id])
			continue
		}
		sets = append(sets, l.state.sets[id])
	}
	return append(sets, guards...)
}
