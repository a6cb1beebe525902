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

	"k8s.io/client-go/util/workqueue"

	"github.com/drover-dev/drover/agent/baseline"
	"github.com/drover-dev/drover/agent/watch"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/await"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

const (
	// firstRetry and maxRetry are the shortest and the longest delay before a set with problems is reconciled again.
	// The delay doubles with each pass.
	firstRetry = time.Second
	maxRetry   = 5 * time.Minute
	// parallelSaves is the maximum number of sets that are stored in parallel. When many sets arrive together, most of
	// them are applied before they are stored.
	parallelSaves = 4
	// settle is the delay between an event and the resulting pass. It lets a pass handle several events. The agent's
	// own writes also cause events.
	settle = 10 * time.Millisecond
	// loadRetry is the delay after an error before the stored sets are read again.
	loadRetry = time.Second
)

// request is the latest request from the hub for a set. It records the callers that are waiting for the result.
type request struct {
	wanted  *set.Set // nil to remove the set
	content set.Content
	results []chan<- protocol.SetState
}

// leadership holds the state of a replica while the replica is the leader.
type leadership struct {
	options   Options
	catalogue catalogue
	cache     objectCache
	store     store
	publisher publisher
	queue     workqueue.TypedRateLimitingInterface[string] // set IDs
	lanes     *lanes                                       // admits writes of objects
	saves     chan struct{}                                // limits the number of concurrent saves
	ended     <-chan struct{}                              // closed when the leadership ends
	// ready is closed once the stored sets and the member's objects have been read.
	ready     chan struct{}
	state     *state
	hub       hubHistory
	baselines *baseline.Keeper
	unclaimed func([]string) // called after each check with the names of objects that belong to no set
}

// state indexes the sets and the objects that they own.
type state struct {
	mu        sync.Mutex // guards the fields below
	sets      map[string]*localSet
	asked     map[string]request         // requests that no pass has picked up yet, by set ID
	ids       map[string]string          // set IDs by label
	project   map[string]map[string]bool // for each project, the IDs of the sets that depend on its namespaces
	owners    map[ref]string             // ID of the set that owns each object
	waiting   map[ref]map[string]bool    // IDs of the other sets that contain each object
	applied   map[ref]applied
	roles     roleSets
	found     map[string]time.Time // when a ClusterRole that belongs to no set was last found, by name
	unclaimed bool                 // whether the last check found unclaimed objects
	baselines map[string]bool      // IDs of the sets with a Baseline
	values    map[string]string    // values for Baselines; nil until their set has arrived
	unseen    map[string]bool      // IDs of stored sets that this leader has not reconciled yet
}

func newLeadership(ctx context.Context, o Options) *leadership {
	l := &leadership{
		options: o, catalogue: newCatalogue(), store: store{o.Secrets}, publisher: publisher{o.Topic}, queue: newQueue(o.Now),
		saves: make(chan struct{}, parallelSaves), ended: ctx.Done(),
		ready: make(chan struct{}), unclaimed: func([]string) {},
		state: &state{
			sets: map[string]*localSet{}, asked: map[string]request{}, ids: map[string]string{},
			project: map[string]map[string]bool{}, owners: map[ref]string{},
			waiting: map[ref]map[string]bool{}, applied: map[ref]applied{}, roles: newRoleSets(), found: map[string]time.Time{},
			unseen: map[string]bool{}, baselines: map[string]bool{},
		},
	}
	l.cache = newObjectCache(l.changed)
	l.lanes = newLanes(func(ids []string) {
		for _, id := range ids {
			l.queue.Add(id)
		}
	})
	l.baselines = baseline.New(ctx, baseline.Options{Client: o.Kube, Secrets: o.Secrets, Write: l.lanes.do,
		Changed: func(id string) { l.queue.AddAfter(id, settle) }, Now: o.Now, Log: o.Log})
	context.AfterFunc(ctx, l.queue.ShutDown)
	return l
}

// run applies sets and repairs drift until ctx is done, which happens when the leadership ends.
func (l *leadership) run(ctx context.Context) {
	if !l.options.Await(ctx) {
		return
	}
	var watches sync.WaitGroup
	for _, k := range protocol.SetKinds() {
		watches.Go(func() { l.cache[k.Name].Follow(ctx, l.collection(k)) })
	}
	defer watches.Wait()
	defer l.baselines.Wait()
	if !l.load(ctx) {
		return
	}
	for _, objects := range l.cache {
		select {
		case <-objects.Known():
		case <-ctx.Done():
			return
		}
	}
	close(l.ready)
	l.offerLeft()
	l.queue.AddAfter(unclaimedEntry, unclaimedSettle)
	l.publisher.Sync()
	l.work(ctx)
}

// work reconciles each due set in its own goroutine. After the queue has shut down, work waits for all goroutines.
func (l *leadership) work(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		id, ended := l.queue.Get()
		if ended {
			return
		}
		running.Go(func() {
			defer l.queue.Done(id)
			l.reconcile(ctx, id)
		})
	}
}

// collection describes which objects of a kind to watch. The collection is optional: if the API server does not serve a
// kind, or if the agent is not allowed to read it, the agent cannot have applied objects of that kind. All Namespaces
// are watched, because a Namespace loses its label when it leaves a project.
func (l *leadership) collection(k protocol.ObjectKind) watch.Collection {
	c := watch.Collection{Client: l.options.Client, Path: collection(k, ""), Labels: v1.LabelSet, Optional: true,
		Log: l.options.Log}
	if k.Name == kindNamespace {
		c.Labels = ""
	}
	return c
}

// load reads the stored sets. It retries until it succeeds or ctx is done.
func (l *leadership) load(ctx context.Context) bool {
	for {
		all, broken, err := l.store.load(ctx)
		for _, b := range broken {
			l.options.Log.Error(b, "cannot read a stored set; the hub sends it again")
		}
		if err == nil {
			err = l.loadHistory(ctx)
		}
		if err == nil {
			for _, one := range all {
				l.adopt(one)
			}
			return true
		}
		l.options.Log.Error(err, "cannot read the stored sets; retrying")
		if !await.Time(ctx, loadRetry) {
			return false
		}
	}
}

func (l *leadership) adopt(one saved) {
	id := one.set.ID
	s := l.set(id)
	s.want(one.set, one.content)
	s.kept = one.kept
	l.follow(s)
	l.state.mu.Lock()
	l.state.unseen[id] = true
	l.state.mu.Unlock()
	l.publisher.publish(protocol.SetState{ID: id, Digest: one.set.Digest, Phase: protocol.SetPending,
		Baseline: beginning(s.content.Baseline)})
	l.queue.Add(id)
}

// set returns the local set with the given ID, and creates it if necessary. Only the goroutine that reconciles this
// ID may call set.
func (l *leadership) set(id string) *localSet {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	s := l.state.sets[id]
	if s == nil {
		s = &localSet{id: id, label: labelOf(id), claimed: map[ref]bool{}}
		l.state.sets[id] = s
		if _, taken := l.state.ids[s.label]; !taken || !strings.HasPrefix(id, leftPrefix) {
			l.state.ids[s.label] = id
		}
	}
	return s
}

// follow registers the set so that it is queued when its project's namespaces change or when a role that it binds
// changes.
func (l *leadership) follow(s *localSet) {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	l.state.roles.follow(s)
	for _, id := range l.state.followBaseline(s) {
		l.queue.Add(id)
	}
	for project, ids := range l.state.project {
		if delete(ids, s.id); len(ids) == 0 {
			delete(l.state.project, project)
		}
	}
	if p := s.content.PerNamespace; p != nil && !s.deleting {
		if l.state.project[p.Project] == nil {
			l.state.project[p.Project] = map[string]bool{}
		}
		l.state.project[p.Project][s.id] = true
	}
}

// forget drops a set that has no objects left.
func (l *leadership) forget(s *localSet) {
	l.unclaim(s, nil)
	l.state.mu.Lock()
	l.state.roles.forget(s)
	delete(l.state.sets, s.id)
	delete(l.state.baselines, s.id)
	if l.state.ids[s.label] == s.id {
		delete(l.state.ids, s.label)
	}
	l.state.mu.Unlock()
	l.seen(s.id)
	l.baselines.Close(s.id)
	l.publisher.Delete(s.id)
}

// changed queues the sets that are affected by a changed object.
func (l *leadership) changed(r ref, before, now *object) {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	if r.kind == kindNamespace {
		for project := range movedBetween(before, now) {
			for id := range l.state.project[project] {
				l.queue.Add(id)
			}
		}
	}
	if id := l.drifted(r, now); id != "" {
		l.queue.AddAfter(id, settle)
	}
	if l.mayBeUnclaimed(r, now) || now == nil && l.state.unclaimed {
		l.queue.AddAfter(unclaimedEntry, unclaimedSettle)
	}
}

// movedBetween returns the projects that a Namespace leaves or joins when it changes from before to now.
func movedBetween(before, now *object) map[string]bool {
	projects := map[string]bool{}
	if before != nil && now != nil && before.project == now.project && before.uid == now.uid &&
		before.deleting == now.deleting {
		return projects
	}
	for _, o := range []*object{before, now} {
		if o != nil && o.project != "" {
			projects[o.project] = true
		}
	}
	return projects
}

// drifted returns the ID of the set that needs a pass because an object has changed, or "" if no set needs one. The
// caller must hold state.mu.
func (l *leadership) drifted(r ref, now *object) string {
	id, wanted := l.state.owners[r]
	switch last := l.state.applied[r]; {
	case wanted && now != nil && now.mark == last.mark && now.added == last.added &&
		(r.kind == kindNamespace || l.state.ids[now.set] == id):
		return ""
	case wanted:
		return id
	case now == nil || now.deleting || now.mark == 0:
		return ""
	}
	return l.state.ids[now.set]
}

// reconcile handles the pending request for a set, if any, and then runs a pass.
func (l *leadership) reconcile(ctx context.Context, id string) {
	if l.reconcileOther(ctx, id) {
		return
	}
	r, asked, known := l.requested(id)
	if !asked && !known || ctx.Err() != nil {
		return
	}
	s := l.set(id)
	if asked {
		l.take(s, r)
	}
	state := l.pass(ctx, s)
	for _, result := range r.results {
		result <- state
	}
}

// requested removes and returns the pending request for a set. The asked result reports whether there was a request,
// and known reports whether the set exists.
func (l *leadership) requested(id string) (r request, asked, known bool) {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	r, asked = l.state.asked[id]
	delete(l.state.asked, id)
	return r, asked, l.state.sets[id] != nil
}

// take applies a request to a local set.
func (l *leadership) take(s *localSet, r request) {
	switch {
	case r.wanted == nil:
		brought, _ := rolesOf(s)
		s.deleting = true
		l.follow(s)
		l.wakeBinders(brought...) // the bindings must be removed before another client can create a role with this name
	case s.wanted.Digest != r.wanted.Digest || s.deleting:
		s.want(r.wanted, r.content)
		s.kept.unsaved, s.deleting = r.wanted, false
		l.queue.Forget(s.id)
		l.follow(s)
	}
}

// errEnded is returned if this replica is no longer the leader.
var errEnded = errors.New("this replica of the agent no longer leads")

// put accepts a set, which is then applied and stored. The work continues even if the caller stops waiting for the
// result.
func (l *leadership) put(ctx context.Context, wanted *set.Set, content set.Content) (protocol.SetState, error) {
	return l.ask(ctx, wanted.ID, request{wanted: wanted, content: content})
}

// remove removes a set and its objects. The objects may exist even if the set is unknown to this leader.
func (l *leadership) remove(ctx context.Context, id string) (protocol.SetState, error) {
	return l.ask(ctx, id, request{})
}

// ask queues a request and waits for the result. If no pass has picked up an earlier request for the same set, the
// new request replaces it. The error is errEnded or the error of ctx.
func (l *leadership) ask(ctx context.Context, id string, r request) (protocol.SetState, error) {
	result := make(chan protocol.SetState, 1)
	l.state.mu.Lock()
	r.results = append(l.state.asked[id].results, result)
	l.state.asked[id] = r
	l.state.mu.Unlock()
	l.queue.Add(id)
	select {
	case state := <-result:
		return state, nil
	case <-l.ended:
		return protocol.SetState{}, errEnded
	case <-ctx.Done():
		return protocol.SetState{}, ctx.Err()
	}
}

// all returns all sets, sorted by ID. The set with the guard policies comes last.
func (l *leadership) all() []*localSet {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	ids := slices.Sorted(maps.Keys(l.state.sets))
	var sets, guards []*localSet
	for _, id := range ids {
		if id == set.Guards {
			guards = append(guards, l.state.sets[id])
			continue
		}
		sets = append(sets, l.state.sets[id])
	}
	return append(sets, guards...)
}
