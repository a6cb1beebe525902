// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/agent/watch"
	"github.com/drover-dev/drover/internal/baseline"
	"github.com/drover-dev/drover/internal/protocol"
)

// pass is one reconciliation of a Baseline.
type pass struct {
	*kept
	now   time.Time
	state protocol.BaselineState

	lock     sync.Mutex // guards the fields below while objects are written in parallel
	problems []protocol.SetObject
	blocked  bool // whether later stages and pruning must wait
	again    time.Duration
}

func (p *pass) result() Result {
	slices.SortFunc(p.problems, func(a, b protocol.SetObject) int { return cmp.Compare(a.Object, b.Object) })
	return Result{Problems: p.problems, State: p.state, Again: p.again}
}

// blocks reports whether an object in this phase delays later stages and pruning. The other phases describe objects
// that have been applied.
func blocks(phase protocol.SetPhase) bool {
	return phase != protocol.SetProgressing && phase != protocol.SetUnhealthy && phase != protocol.SetDrifted
}

// problem reports an object that is not in the desired state.
func (p *pass) problem(o protocol.SetObject) {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.problems = append(p.problems, o)
	p.blocked = p.blocked || blocks(o.Phase)
}

func (p *pass) report(r ref, phase protocol.SetPhase, message string) {
	p.problem(protocol.SetObject{Object: r.String(), Phase: phase, Message: message})
}

// fail reports a problem that affects the whole Baseline.
func (p *pass) fail(message string) {
	p.problem(protocol.SetObject{Object: "Baseline " + p.id, Phase: protocol.SetFailed, Message: message})
}

// later schedules the next pass after the given time, unless a pass is due sooner.
func (p *pass) later(wait time.Duration) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if wait = max(wait, time.Millisecond); p.again == 0 || wait < p.again {
		p.again = wait
	}
}

// keep applies the objects in stages, and deletes objects that are no longer wanted.
func (p *pass) keep(ctx context.Context) {
	doomed := p.store.plan(p.wanted)
	p.setInterest()
	if err := p.store.save(ctx); err != nil { // objects that are not in the inventory could remain forever
		p.fail("the inventory cannot be written: " + err.Error())
		return
	}
	for stage := range baseline.StageCount {
		var all []wanted
		for _, w := range p.wanted {
			if w.stage() == stage {
				all = append(all, w)
			}
		}
		kube.Each(ctx, all, func(w wanted) { p.keepOne(ctx, w) })
		if p.blocked || ctx.Err() != nil {
			break
		}
	}
	if !p.blocked && ctx.Err() == nil {
		p.prune(ctx, doomed)
		p.stopUnused()
	}
	if err := p.store.save(ctx); err != nil && ctx.Err() == nil {
		p.fail("the inventory cannot be written: " + err.Error())
	}
}

// stopUnused ends the watches of kinds that have no objects in the inventory.
func (p *pass) stopUnused() {
	used := map[kind]bool{}
	for r := range p.store.entries {
		used[r.kind] = true
	}
	p.stopWatches(used)
}

const (
	// knownTime is how long a pass waits for the first list of a kind.
	knownTime = 15 * time.Second
	// establishTime is how long the API server may take to serve a kind after its definition was applied.
	establishTime = time.Minute
)

// locate returns the watch of an object's kind as soon as the objects of that kind are known. If it returns nil, it has
// reported a problem.
func (p *pass) locate(ctx context.Context, w wanted) *follow {
	f := p.watched(w.kind)
	if f != nil && f.objects.Stale() { // the definition of the kind may have been deleted or replaced
		p.kinds.forget(w.apiVersion)
		p.unfollow(w.kind, f)
		f = nil
	}
	s, ok, err := p.kinds.find(ctx, w.apiVersion, w.name)
	switch {
	case err != nil:
		p.failed(ctx, w.ref, err)
		return nil
	case !ok:
		p.notServed(w)
		return nil
	case s.namespaced != (w.namespace != ""):
		message := "its kind is namespaced: set metadata.namespace"
		if !s.namespaced {
			message = "its kind is not namespaced: remove metadata.namespace"
		}
		p.kinds.forget(w.apiVersion) // its definition may have been replaced
		p.report(w.ref, protocol.SetFailed, message)
		return nil
	}
	if f == nil || f.forbidden.Load() {
		if err := p.objects.MayList(ctx, s.path("", "")); err != nil {
			if apierrors.IsNotFound(err) {
				p.kinds.forget(w.apiVersion)
			}
			p.failed(ctx, w.ref, err)
			return nil
		}
	}
	f = p.follow(w.kind, s)
	select {
	case <-f.objects.Known():
		return f
	case <-time.After(knownTime):
		p.report(w.ref, protocol.SetPending, "the API server does not list the objects of this kind")
	case <-ctx.Done():
	}
	return nil
}

// notServed reports an object whose kind the API server does not serve. A definition of the kind may have just been
// applied.
func (p *pass) notServed(w wanted) {
	phase := protocol.SetFailed
	if p.now.Sub(p.since) < establishTime {
		phase = protocol.SetPending
		p.later(missAgain)
	}
	p.report(w.ref, phase, fmt.Sprintf("this cluster does not serve the kind %s of %s: install its definition first",
		w.name, w.apiVersion))
}

// keepOne applies an object, unless nothing has changed since it was last applied.
func (p *pass) keepOne(ctx context.Context, w wanted) {
	if w.problem != nil {
		p.problem(*w.problem)
		return
	}
	f := p.locate(ctx, w)
	if f == nil {
		return
	}
	e := p.entry(w.ref)
	now, there := f.objects.Get(watch.Name{Namespace: w.namespace, Name: w.object})
	switch same := e.Digest == w.digest; {
	case there && now.deleting:
		p.report(w.ref, protocol.SetPending, "it is being deleted, and is created again once it is gone")
		return
	case there && same && e.UID == now.uid && e.Mark == now.mark:
	case same && !p.mayRepair(w, now, there):
		return
	default:
		written, ok := p.write(ctx, f, w, e, now, there)
		if !ok {
			return
		}
		now = written
	}
	if !p.fights(w.ref) {
		p.judge(w, now)
	}
}

func (p *pass) entry(r ref) entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.store.entries[r]
}
