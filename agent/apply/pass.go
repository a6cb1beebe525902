// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

// pass applies a set to the member and publishes the resulting state. ctx is done when the leadership ends.
func (l *leadership) pass(ctx context.Context, s *localSet) protocol.SetState {
	p := &pass{
		leader: l, set: s, now: l.options.Now(),
		wanted: map[ref]bool{}, problems: map[ref]protocol.SetObject{}, writing: map[ref]bool{}, altered: map[ref]string{},
	}
	state := protocol.SetState{ID: s.id, Digest: s.wanted.Digest, Baseline: baselinePass{p}.meanwhile()}
	over := p.publishMeanwhile(&state)
	defer over()
	gone := s.deleting || p.expired()
	saved := sync.OnceValue(func() bool { return p.save(ctx) })
	switch {
	case gone && l.taken(s):
	case gone:
		p.removeObjects(ctx)
	// A set with an expiry time is stored before it is applied. Otherwise, the set's objects could remain forever if
	// the agent exited between the two steps.
	case s.wanted.ExpiresAt == nil || saved():
		p.keep(ctx, &state)
	}
	saved()
	over()
	if ctx.Err() != nil { // the next leader continues
		state.Phase = protocol.SetPending
		return state
	}
	p.summarize(&state)
	if s.deleting && len(p.problems) == 0 {
		return l.finish(ctx, s, state)
	}
	if gone && len(p.problems) == 0 {
		state.Phase = protocol.SetExpired
	}
	p.schedule(gone)
	if !(baselinePass{p}).tooSoon(state) && l.publisher.publish(state) {
		bring, _ := rolesOf(s)
		l.wakeBinders(bring...)
	}
	l.seen(s.id)
	return state
}

// schedule queues the next pass. Another pass is due after a problem, when the set expires, or when the agent may
// repair an object.
func (p *pass) schedule(gone bool) {
	if id := p.set.id; retried(p.problems) {
		p.leader.queue.AddRateLimited(id)
	} else {
		p.leader.queue.Forget(id)
	}
	if end := p.set.wanted.ExpiresAt; end != nil && !gone {
		p.later(end.Sub(p.now))
	}
	if p.again > 0 {
		p.leader.queue.AddAfter(p.set.id, p.again)
	}
}

// finish deletes a set from the store once none of its objects are left in the member.
func (l *leadership) finish(ctx context.Context, s *localSet, state protocol.SetState) protocol.SetState {
	if err := l.store.remove(ctx, s.id, s.kept); err != nil {
		state.Phase, state.Message = explain(ref{kind: kindSecret, name: firstName(s.id)}, err)
		l.queue.AddRateLimited(s.id)
		l.publisher.publish(state)
		return state
	}
	l.queue.Forget(s.id)
	l.forget(s)
	state.Phase = protocol.SetDeleted
	return state
}

// pass is one reconciliation of a set.
type pass struct {
	leader *leadership
	set    *localSet
	now    time.Time
	wanted map[ref]bool
	again  time.Duration // time until the next pass; 0 if no pass is scheduled

	mu       sync.Mutex // guards the field again and the fields below it while objects are applied
	problems map[ref]protocol.SetObject
	writing  map[ref]bool   // objects that are currently being written
	altered  map[ref]string // for each object, the path of a field that was stored with a different value, or ""
}

func (p *pass) expired() bool {
	end := p.set.wanted.ExpiresAt
	return end != nil && !p.now.Before(*end)
}

// later schedules the next pass after the given time, unless a pass is due sooner.
func (p *pass) later(wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if wait = max(wait, time.Millisecond); p.again == 0 || wait < p.again {
		p.again = wait
	}
}

func (p *pass) problem(r ref, phase protocol.SetPhase, message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.problems[r] = protocol.SetObject{Object: r.String(), Phase: phase, Message: message}
}

// fail records an error as the problem with an object. It records nothing once ctx is done, because the leadership has
// ended and the next leader continues.
func (p *pass) fail(ctx context.Context, r ref, err error) {
	if err != nil && ctx.Err() == nil {
		phase, message := explain(r, err)
		p.problem(r, phase, message)
	}
}

// save stores the set unless it is already stored, and reports whether the set is now stored.
//
// A set is applied before it is stored, and the response is sent after both steps. If the agent exits before the set is
// stored, the hub receives no response and sends the set again. Until then, the next agent applies the previously
// stored version. If there is none, it leaves the objects unchanged.
func (p *pass) save(ctx context.Context) bool {
	s := p.set
	if s.deleting || s.kept.unsaved == nil {
		return true
	}
	p.leader.saves <- struct{}{}
	defer func() { <-p.leader.saves }()
	after, err := p.leader.store.save(ctx, s.kept.unsaved, s.kept)
	if err != nil {
		r := ref{kind: kindSecret, name: firstName(s.id)}
		_, message := explain(r, err)
		p.problem(r, protocol.SetFailed, "the set is not stored: "+message)
		return false
	}
	s.kept = after
	return true
}

// keep applies the objects of the set and removes objects that are no longer in it.
func (p *pass) keep(ctx context.Context, state *protocol.SetState) {
	ordered, err := p.expand(ctx, state)
	if err != nil { // nothing may be removed, because the set could not be expanded
		p.problem(ref{kind: "set", name: p.set.id}, protocol.SetFailed, err.Error())
		return
	}
	p.applyAll(ctx, ordered[0])
	p.applyAll(ctx, p.bindable(ctx, ordered[1]))
	p.applyAll(ctx, ordered[2])
	if !slices.ContainsFunc(ordered[2], func(it item) bool { return p.failed(it.ref) }) {
		p.applyAll(ctx, ordered[3])
	}
	if !p.waits() { // a binding is removed only after its replacement has been applied
		p.prune(ctx)
	}
	baselinePass{p}.keep(ctx, state) // after the removal of bindings, so that the Baseline's user has only the new rights
	p.reportMissingRoles(ctx, ordered[1])
}

// expand applies the set's Namespaces, and returns the set's other objects in the order in which to apply them.
// Namespaces come first, because a namespace must be in the project before objects are created in the namespace.
func (p *pass) expand(ctx context.Context, state *protocol.SetState) (ordered [4][]item, err error) {
	var names []*unstructured.Unstructured
	for _, o := range p.set.content.Objects {
		if o != nil && o.GetKind() == kindNamespace {
			names = append(names, o)
		}
	}
	first, _ := p.items(names)
	p.applyAll(ctx, first)
	p.reportTerminating(ctx, first)
	namespaces, err := p.namespaces(ctx)
	if err != nil {
		return ordered, err
	}
	result, err := p.set.content.Expand(namespaces, set.Labels(p.set.id))
	if err != nil {
		return ordered, err
	}
	items, err := p.items(result.Objects)
	if err != nil {
		return ordered, err
	}
	if ordered, err = phases(items, p.held()); err == nil {
		p.mu.Lock()
		state.Namespaces, state.Short, state.Spent = living(namespaces), result.Short, result.Spent
		p.mu.Unlock()
	}
	return ordered, err
}

// reportMissingRoles reports bindings to ClusterRoles that belong to no set and do not exist. The agent applies these
// bindings, but they have no effect.
func (p *pass) reportMissingRoles(ctx context.Context, items []item) {
	missing := map[string]error{}
	for _, it := range items {
		if it.role == "" || ofSet(it.role) || p.failed(it.ref) {
			continue
		}
		err, asked := missing[it.role]
		if !asked {
			err = p.leader.lookForRole(ctx, it.role)
			missing[it.role] = err
		}
		switch {
		case notFound(err):
			p.problem(it.ref, protocol.SetRoleMissing,
				fmt.Sprintf("it grants nothing: there is no ClusterRole %q here; make it, or have the role template name another",
					it.role))
		case err != nil:
			p.fail(ctx, it.ref, fmt.Errorf("look for ClusterRole %s: %w", it.role, err))
		}
	}
}

// roleTime is how long the agent assumes that an existing ClusterRole still exists. This saves requests when many
// bindings to the same role arrive together.
const roleTime = time.Second

// lookForRole returns an error if the ClusterRole does not exist.
func (l *leadership) lookForRole(ctx context.Context, name string) error {
	l.state.mu.Lock()
	at, seen := l.state.found[name]
	l.state.mu.Unlock()
	if seen && time.Since(at) < roleTime {
		return nil
	}
	_, err := l.options.Objects.Meta(ctx, l.catalogue.path(ref{kind: kindClusterRole, name: name}))
	if err == nil {
		l.state.mu.Lock()
		maps.DeleteFunc(l.state.found, func(_ string, at time.Time) bool { return time.Since(at) >= roleTime })
		l.state.found[name] = time.Now()
		l.state.mu.Unlock()
	}
	return err
}

func living(namespaces []set.Namespace) (n int32) {
	for _, ns := range namespaces {
		if !set.Reserved(ns.Name) && !ns.Terminating {
			n++
		}
	}
	return n
}

// items returns the objects that the set may apply. It reports objects of unknown kinds and objects that belong to
// another set.
func (p *pass) items(objects []*unstructured.Unstructured) ([]item, error) {
	var all []item
	for _, o := range objects {
		if o == nil {
			return nil, fmt.Errorf("the set has an empty object")
		}
		r, err := p.leader.catalogue.refOf(o)
		if err != nil {
			p.problem(r, protocol.SetFailed, err.Error())
			continue
		}
		p.wanted[r] = true
		if owner, ok := p.leader.claim(r, p.set); !ok {
			p.problem(r, protocol.SetConflict,
				fmt.Sprintf("it is already in the set %s: give one of the two another name", owner))
			continue
		}
		it, err := newItem(r, o)
		if err != nil {
			p.problem(r, protocol.SetFailed, err.Error())
			continue
		}
		all = append(all, it)
	}
	return all, nil
}

// namespaces returns the namespaces in the set's project, together with the current quota of each namespace.
func (p *pass) namespaces(ctx context.Context) ([]set.Namespace, error) {
	per := p.set.content.PerNamespace
	if per == nil {
		return nil, nil
	}
	all := p.leader.cache.members(per.Project)
	if p.set.quotas == nil {
		held, err := p.readHeld(ctx)
		if err != nil {
			return nil, err
		}
		p.set.quotas = &quotas{held: held}
	}
	held := map[string]corev1.ResourceList{}
	for i := range all {
		if hard, known := p.set.quotas.held[all[i].Name]; known {
			all[i].Held, held[all[i].Name] = hard, hard
		}
	}
	p.set.quotas.held = held // namespaces that have left the project have no quota
	return all, nil
}

// readHeld reads the quotas that a previous leader applied.
func (p *pass) readHeld(ctx context.Context) (map[string]corev1.ResourceList, error) {
	held := map[string]corev1.ResourceList{}
	for _, r := range p.leader.cache.of(p.set.label) {
		if r.kind != kindQuota || r.name != set.QuotaName {
			continue
		}
		o := &unstructured.Unstructured{}
		if err := p.leader.options.Objects.Whole(ctx, p.leader.catalogue.path(r), &o.Object); err != nil {
			if notFound(err) {
				continue
			}
			return nil, fmt.Errorf("read %s: %w", r, err)
		}
		hard, err := hardOf(o)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", r, err)
		}
		held[r.namespace] = hard
	}
	return held, nil
}

func (p *pass) held() map[string]corev1.ResourceList {
	if p.set.quotas == nil {
		return nil
	}
	return p.set.quotas.held
}

func (p *pass) recordQuota(it item) {
	if it.hard == nil || p.set.quotas == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set.quotas.held[it.ref.namespace] = it.hard
}

func (p *pass) applyAll(ctx context.Context, items []item) {
	kube.Each(ctx, items, func(it item) { p.applyOne(ctx, it) })
}
