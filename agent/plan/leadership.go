// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/drover-dev/drover/agent/watch"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/release"
	"github.com/drover-dev/drover/internal/rollout"
)

// leadership is the state of a replica while it is the leader. Except for the publisher and the drains, it is
// accessed only by the goroutine that runs it.
type leadership struct {
	options   Options
	member    apiClient
	publisher publisher
	ended     chan struct{} // closed when the leadership ends
	tasks     tasks
	channels  *release.Poller
	wake      chan struct{} // signals that something may have changed
	retired   chan retirement

	stores
	state
	waits    waits
	running  sync.WaitGroup
	snapshot *rollout.Member // member's state for the planner; nil after each step
	watching bool            // whether nodes, Jobs and Secrets are watched
	leaving  bool            // whether the agent is leaving the member and runs no Plans
}

// tasks run in the background, and wake the loop when they end.
type tasks struct {
	drains *drains
	logs   *logs
	checks *checks
}

// state contains the results of this leader's writes.
type state struct {
	refused    map[refusedJob]string // messages with which the API server refused Jobs
	releases   backoff               // backoff for releasing nodes whose Plan is gone
	planStates map[string]*planState // by the UID of a Plan
	account    bool                  // whether the account for the pods of plans has been applied
}

// planState contains the results of this leader's writes for one Plan.
type planState struct {
	limiter       limiter // limits writes of the status
	status, steps backoff
	taken         repetition
	obstacle      rollout.Wait // the error to publish until the backoff of steps is over
}

// planState returns the state of a Plan by its UID.
func (b *state) planState(uid string) *planState {
	if b.planStates[uid] == nil {
		b.planStates[uid] = &planState{}
	}
	return b.planStates[uid]
}

// stores contain the known state of the member.
type stores struct {
	plans   *watch.Store[*v1.Plan, *v1.Plan]
	space   *watch.Store[*corev1.Namespace, adminHold]
	nodes   *watch.Store[*corev1.Node, knownNode]
	jobs    *watch.Store[*batchv1.Job, knownJob]
	secrets *watch.Store[*corev1.Secret, knownSecret]
	// kindMissing is set if the API server does not serve the Plan kind. The kind must then be installed again.
	kindMissing *atomic.Bool
}

// refusedJob identifies an attempt whose Job was refused.
type refusedJob struct {
	plan, node, hash string
	attempt          int32
}

func newLeadership(o Options) *leadership {
	l := &leadership{
		options: o, member: apiClient{o.Client}, publisher: publisher{o.Topic}, ended: make(chan struct{}),
		wake: make(chan struct{}, 1), retired: make(chan retirement),
		state:    state{refused: map[refusedJob]string{}, planStates: map[string]*planState{}},
		channels: release.NewPoller(o.Ask, o.Now),
	}
	l.publisher.hold("")
	l.channels.OnPolled(func(string) { l.touch() })
	l.tasks = tasks{newDrains(o, l.touch), newLogs(l.member, l.touch), newChecks(o, l.touch)}
	l.stores = stores{
		plans: newStore(readPlan, l.touch), space: newStore(readVeto, l.touch), nodes: newStore(readNode, l.touch),
		jobs: newStore(readJob, l.touch), secrets: newStore(readSecret, l.touch),
		kindMissing: &atomic.Bool{},
	}
	l.waits = waits{pods: newStore(readPod, l.touch), events: newStore(readEvent, l.touch)}
	return l
}

func newStore[O watch.Object, T any](read func(O) (T, bool), seen func()) *watch.Store[O, T] {
	return watch.NewStore(watch.Options[O, T]{Read: read, Seen: seen})
}

// touch wakes the loop.
func (l *leadership) touch() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run runs Plans until ctx is done, and then waits for everything that it started.
func (l *leadership) run(ctx context.Context) {
	defer close(l.ended)
	ctx, cancel := context.WithCancel(ctx)
	defer l.running.Wait()
	defer cancel()
	if !l.options.Await(ctx) || !l.persist(ctx, "install what plans need", l.install) {
		return
	}
	l.follow(ctx, l.plans, watch.Collection{Path: pathPlans, OnError: l.onPlansError})
	l.follow(ctx, l.space, watch.Collection{Path: pathNamespaces, Fields: "metadata.name=" + v1.PlansNamespace})
	if !known(ctx, l.plans.Known()) || !known(ctx, l.space.Known()) {
		return
	}
	l.running.Go(func() { _ = l.channels.Start(ctx) }) // the error is always nil
	left := false
	if !l.persist(ctx, "look for nodes at work", func(ctx context.Context) (err error) {
		left, err = l.member.claimed(ctx, hasClaim)
		return err
	}) {
		return
	}
	if left && !l.watch(ctx) {
		return
	}
	l.loop(ctx)
}

// persist retries do until it succeeds. It returns false if ctx is done first.
func (l *leadership) persist(ctx context.Context, what string, do func(context.Context) error) bool {
	for b := (backoff{}); ; {
		err := do(ctx)
		if err == nil {
			return true
		}
		b = b.after(l.options.Now())
		if ctx.Err() == nil {
			l.options.Log.Error(err, "plans wait", "for", what)
			l.publisher.holdFor(what, err)
		}
		if !l.pauseAfter(ctx, b.wait, err) {
			return false
		}
	}
}

// pauseAfter waits after an error. It returns false if ctx is done first. If a retirement arrives during the wait,
// pauseAfter responds to it, usually with the error, because the error may be temporary. It responds that no objects
// remain if the agent is being removed, or if the API server forbids the requests that plans need, for example because
// the agent's rights come from an older manifest.
func (l *leadership) pauseAfter(ctx context.Context, d time.Duration, err error) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case r := <-l.retired:
			if _, refused := refusedFor(err); refused || errors.Is(err, errRemoved) {
				r.result <- leaveResult{}
			} else {
				r.result <- leaveResult{remaining: []string{"what plans need: " + err.Error()}}
			}
		}
	}
}

// known waits until the ready channel is closed. It returns false if ctx is done first.
func known(ctx context.Context, ready <-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case <-ready:
		return true
	}
}

func hasClaim(annotations map[string]string) bool {
	for key := range maps.Keys(annotations) {
		if _, is := claimOf(key); is {
			return true
		}
	}
	return false
}

// follow starts keeping a store up to date.
func (l *leadership) follow(ctx context.Context, s interface {
	Follow(context.Context, watch.Collection)
}, c watch.Collection) {
	c.Client, c.Log = l.options.Client, l.options.Log
	l.running.Go(func() { s.Follow(ctx, c) })
}

// watch starts the necessary watches as soon as there is a Plan, and waits for their first lists. It returns false if
// ctx is done first.
func (l *leadership) watch(ctx context.Context) bool {
	l.watching = true
	l.follow(ctx, l.nodes, watch.Collection{Path: pathNodes})
	l.follow(ctx, l.jobs, watch.Collection{Path: pathJobs})
	l.follow(ctx, l.secrets, watch.Collection{Path: pathSecrets})
	l.follow(ctx, l.waits.pods, watch.Collection{Path: pathPods, Labels: labelController + "=" + controllerName})
	// Events are optional, because no step needs them and an older manifest does not grant permission to read them.
	l.follow(ctx, l.waits.events, watch.Collection{
		Path: pathEvents, Fields: "type=" + corev1.EventTypeWarning, Optional: true,
	})
	return known(ctx, l.nodes.Known()) && known(ctx, l.jobs.Known()) && known(ctx, l.secrets.Known()) &&
		known(ctx, l.waits.pods.Known())
}

// loop runs a pass whenever something has changed or is due, until ctx is done.
func (l *leadership) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-l.retired:
			r.result <- l.leave(ctx)
			continue
		case <-l.wake:
		case <-timer.C:
		}
		if l.needsInstall() && !l.persist(ctx, "put back what plans need", l.install) {
			return
		}
		if l.plans.Stale() && !l.leaving {
			continue // the next list shows which Plans exist
		}
		if !l.watching && len(l.plans.Values()) > 0 && !l.watch(ctx) {
			return
		}
		until := l.pass(ctx)
		timer.Stop()
		if !until.IsZero() {
			timer.Reset(max(0, until.Sub(l.options.Now())))
		}
	}
}

// pass advances the Plans until all of them are waiting, publishes their status, and returns the time at which the next
// pass is due.
func (l *leadership) pass(ctx context.Context) time.Time {
	next := &deadline{}
	l.waits.explain(l.jobs.Values())
	l.release(ctx, next)
	if l.leaving {
		return next.at
	}
	plans := l.resolve(next)
	waits := map[string]rollout.Wait{}
	for i := range plans {
		r := &plans[i]
		if r.problem != nil {
			continue
		}
		l.guard(r)
		wait := l.advance(ctx, *r, next)
		if waits[r.plan.UID] = wait; wait.Unchecked {
			next.by(l.check(ctx, *r))
		}
	}
	l.publish(ctx, plans, waits, next)
	return next.at
}

// deadline is the earliest of several times.
type deadline struct{ at time.Time }

func (d *deadline) by(at time.Time) {
	if !at.IsZero() && (d.at.IsZero() || at.Before(d.at)) {
		d.at = at
	}
}
