// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/release"
	"github.com/drover-dev/drover/internal/rollout"
)

// term is one time of leading. All but the board and the drains belongs to the goroutine that runs it.
type term struct {
	options  Options
	member   member
	board    *board
	drains   *drains
	logs     *logs
	channels *release.Poller
	wake     chan struct{} // something may have changed
	retired  chan retirement

	shelves
	book
	running  sync.WaitGroup
	watching bool // nodes, Jobs and Secrets
	leaving  bool // no Plan is run any more
}

// book is what is remembered of writes.
type book struct {
	refused  map[refusal]string // Jobs that the API server refused
	releases backoff            // of nodes whose Plan is no more
	courses  map[string]*course // by the Plan's UID
}

// course is how the writes for a Plan go.
type course struct {
	pace          pace // of the status
	status, steps backoff
	taken         streak
	obstacle      rollout.Wait // what is said until the back-off of steps is over
}

// course of a Plan.
func (b *book) course(uid string) *course {
	if b.courses[uid] == nil {
		b.courses[uid] = &course{}
	}
	return b.courses[uid]
}

// shelves are what is known of the member.
type shelves struct {
	plans   *shelf[*v1.Plan]
	space   *shelf[veto]
	nodes   *shelf[knownNode]
	jobs    *shelf[knownJob]
	secrets *shelf[knownSecret]
	// kindless says that Plans could not be listed for want of their kind, which is to be put back.
	kindless *atomic.Bool
}

// refusal is the attempt whose Job was refused.
type refusal struct {
	plan, node, hash string
	attempt          int32
}

func newTerm(o Options) *term {
	t := &term{
		options: o, member: member{o.Client}, board: newBoard(), wake: make(chan struct{}, 1), retired: make(chan retirement),
		book: book{refused: map[refusal]string{}, courses: map[string]*course{}}, channels: release.NewPoller(o.Ask, o.Now),
	}
	t.channels.OnPolled(func(string) { t.touch() })
	t.drains, t.logs = newDrains(t.member, o, t.touch), newLogs(t.member, t.touch)
	t.shelves = shelves{
		plans: newShelf(readPlan, trimPlan, t.touch), space: newShelf(readVeto, nil, t.touch), nodes: newShelf(readNode, trimNode, t.touch),
		jobs: newShelf(readJob, nil, t.touch), secrets: newShelf(readSecret, nil, t.touch),
		kindless: &atomic.Bool{},
	}
	return t
}

// touch has the member looked at.
func (t *term) touch() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// run runs Plans until ctx ends, and waits for all that it began.
func (t *term) run(ctx context.Context) {
	defer t.board.end()
	ctx, cancel := context.WithCancel(ctx)
	defer t.running.Wait()
	defer cancel()
	if !t.persist(ctx, "install what plans need", t.install) {
		return
	}
	t.follow(ctx, feed{path: pathPlans, sample: &v1.Plan{}, list: func() runtime.Object { return &v1.PlanList{} }, store: t.plans, failed: t.missKind})
	t.follow(ctx, feed{
		path: pathNamespaces, field: "metadata.name=" + v1.PlansNamespace, sample: &corev1.Namespace{},
		list: func() runtime.Object { return &corev1.NamespaceList{} }, store: t.space,
	})
	if !known(ctx, t.plans.ready) || !known(ctx, t.space.ready) {
		return
	}
	t.running.Go(func() { _ = t.channels.Start(ctx) }) // its error is always nil
	left := false
	if !t.persist(ctx, "look for nodes at work", func(ctx context.Context) (err error) {
		left, err = t.member.claimed(ctx, hasClaim)
		return err
	}) {
		return
	}
	if left && !t.watch(ctx) {
		return
	}
	t.loop(ctx)
}

// persist does something again until it succeeds; false when ctx ends before.
func (t *term) persist(ctx context.Context, what string, do func(context.Context) error) bool {
	for b := (backoff{}); ; {
		err := do(ctx)
		if err == nil {
			return true
		}
		b = b.after(t.options.Now())
		if ctx.Err() == nil {
			t.options.Log.Error(err, "plans wait", "for", what)
			t.board.wait(what, err)
		}
		if !t.pauseAfter(ctx, b.wait, err) {
			return false
		}
	}
}

// pauseAfter waits after an error; false when ctx ends before. Whoever wants the term to leave meanwhile is told that nothing is there
// where the API server refuses what plans need, as with the rights of an older manifest, and to try again where that may pass.
func (t *term) pauseAfter(ctx context.Context, d time.Duration, err error) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case r := <-t.retired:
			if _, refused := refusedFor(err); refused {
				r.answer <- outcome{}
			} else {
				r.answer <- outcome{remaining: []string{"what plans need: " + err.Error()}}
			}
		}
	}
}

// pause waits; false when ctx ends before.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// known waits until a shelf is; false when ctx ends before.
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

// follow keeps a shelf up to date.
func (t *term) follow(ctx context.Context, f feed) {
	f.rest, f.log = t.options.Client, t.options.Log
	t.running.Go(func() { f.run(ctx) })
}

// watch begins to watch what only matters once there is a Plan, and waits until it is known; false when ctx ends before.
func (t *term) watch(ctx context.Context) bool {
	t.watching = true
	t.follow(ctx, feed{path: pathNodes, sample: &corev1.Node{}, list: func() runtime.Object { return &corev1.NodeList{} }, store: t.nodes})
	t.follow(ctx, feed{path: pathJobs, sample: &batchv1.Job{}, list: func() runtime.Object { return &batchv1.JobList{} }, store: t.jobs})
	t.follow(ctx, feed{path: pathSecrets, sample: &corev1.Secret{}, list: func() runtime.Object { return &corev1.SecretList{} }, store: t.secrets})
	return known(ctx, t.nodes.ready) && known(ctx, t.jobs.ready) && known(ctx, t.secrets.ready)
}

// loop looks at the member whenever something changed or a time has come, until ctx ends.
func (t *term) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-t.retired:
			r.answer <- t.leave(ctx)
			continue
		case <-t.wake:
		case <-timer.C:
		}
		if t.lacks() && !t.persist(ctx, "put back what plans need", t.install) {
			return
		}
		if t.plans.doubted() && !t.leaving {
			continue // the watch will say which Plans there are
		}
		if !t.watching && len(t.plans.values()) > 0 && !t.watch(ctx) {
			return
		}
		until := t.pass(ctx)
		timer.Stop()
		if !until.IsZero() {
			timer.Reset(max(0, until.Sub(t.options.Now())))
		}
	}
}

// pass takes steps until every Plan waits, says how they are, and returns when to look again.
func (t *term) pass(ctx context.Context) time.Time {
	next := &deadline{}
	t.release(ctx, next)
	if t.leaving {
		return next.at
	}
	plans := t.resolve(next)
	waits := map[string]rollout.Wait{}
	for _, r := range plans {
		if r.problem == nil {
			waits[r.plan.UID] = t.advance(ctx, r, next)
		}
	}
	t.publish(ctx, plans, waits, next)
	return next.at
}

// deadline is the earliest of some times.
type deadline struct{ at time.Time }

func (d *deadline) by(at time.Time) {
	if !at.IsZero() && (d.at.IsZero() || at.Before(d.at)) {
		d.at = at
	}
}
