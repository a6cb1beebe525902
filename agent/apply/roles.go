// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

// patientPasses is the number of consecutive passes for which a binding may wait for its role before it counts as
// failed. Such waits are common, because a binding and its role are often delivered at the same time.
const patientPasses = 4

// roleSets indexes the sets by the names of the ClusterRoles that they contain and bind. state.mu guards it.
type roleSets struct {
	bring map[string]map[string]bool
	bind  map[string]map[string]bool
	// last contains the sets whose Baseline is being removed. The rights of the role are required to delete the
	// Baseline's objects.
	last map[string]map[string]bool
}

func newRoleSets() roleSets {
	return roleSets{
		bring: map[string]map[string]bool{}, bind: map[string]map[string]bool{}, last: map[string]map[string]bool{},
	}
}

func (r roleSets) follow(s *localSet) {
	bring, bind := rolesOf(s)
	for at, names := range map[*map[string]map[string]bool][]string{
		&r.bring: bring, &r.bind: bind, &r.last: lastRoles(s),
	} {
		index := *at
		for name, ids := range index {
			if delete(ids, s.id); len(ids) == 0 {
				delete(index, name)
			}
		}
		for _, name := range names {
			if index[name] == nil {
				index[name] = map[string]bool{}
			}
			index[name][s.id] = true
		}
	}
}

func (r roleSets) forget(s *localSet) {
	s.content = set.Content{}
	r.follow(s)
}

// rolesOf returns the roles that a set contains and the roles that the set binds.
func rolesOf(s *localSet) (bring, bind []string) {
	if s.deleting {
		return nil, nil
	}
	objects := slices.Clone(s.content.Objects)
	if per := s.content.PerNamespace; per != nil {
		for _, template := range per.Templates {
			objects = append(objects, template.Object)
		}
	}
	for _, o := range objects {
		if o == nil {
			continue
		}
		if o.GetKind() == kindClusterRole {
			bring = append(bring, o.GetName())
		} else if role := boundRole(o); ofSet(role) {
			bind = append(bind, role)
		}
	}
	return bring, bind
}

// lastRoles returns the roles that a Baseline binds while it is being removed.
func lastRoles(s *localSet) (names []string) {
	if !s.deleting || s.content.Baseline == nil {
		return nil
	}
	for _, o := range s.content.Objects {
		if o != nil && ofSet(boundRole(o)) {
			names = append(names, boundRole(o))
		}
	}
	return names
}

// rolesAgain is how often to check whether a Baseline still needs a role that is to be removed.
const rolesAgain = time.Second

// rolesGrace is how long a withdrawn role is kept for a Baseline that is not being removed yet. When a Baseline is
// deleted, the hub withdraws the Baseline and its role at the same time, and either request may arrive first.
const rolesGrace = 5 * time.Second

// awaitBaselines reports whether a role of the set must remain because a Baseline uses the role's rights to remove its
// objects, or may be about to do so. In that case, it reports the role as Pending and schedules another pass.
func (p *pass) awaitBaselines() (waits bool) {
	if p.set.removed.IsZero() {
		p.set.removed = p.now
	}
	known := p.leader.state
	known.mu.Lock()
	roles := known.roles.neededBy(known.baselines, p.now.Sub(p.set.removed) < rolesGrace)
	known.mu.Unlock()
	for _, r := range p.leader.cache.of(p.set.label) {
		if r.kind == kindClusterRole && roles[r.name] {
			p.problem(r, protocol.SetPending, "a Baseline removes its objects with these rights")
			p.later(rolesAgain)
			waits = true
		}
	}
	return waits
}

// neededBy returns the roles that Baselines need for their removal. If all is true, the result includes the roles of
// Baselines that are not being removed.
func (r roleSets) neededBy(baselines map[string]bool, all bool) map[string]bool {
	needed := map[string]bool{}
	for name := range r.last {
		needed[name] = true
	}
	if !all {
		return needed
	}
	for name, ids := range r.bind {
		for id := range ids {
			if baselines[id] {
				needed[name] = true
			}
		}
	}
	return needed
}

// boundRole returns the ClusterRole that a binding refers to, or "" for any other object.
func boundRole(o *unstructured.Unstructured) string {
	if o.GetKind() != kindClusterRoleBinding && o.GetKind() != kindRoleBinding {
		return ""
	}
	kind, _, _ := unstructured.NestedString(o.Object, "roleRef", "kind")
	name, _, _ := unstructured.NestedString(o.Object, "roleRef", "name")
	if kind != kindClusterRole {
		return ""
	}
	return name
}

// ofSet reports whether the name of a role has the prefix for roles that are delivered in sets.
func ofSet(role string) bool { return strings.HasPrefix(role, set.RolePrefix) }

// wakeBinders queues the sets that bind any of the given roles.
func (l *leadership) wakeBinders(roles ...string) {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	for _, role := range roles {
		for id := range l.state.roles.bind[role] {
			l.queue.Add(id)
		}
	}
}

// roleState is the state of a role that belongs to a set.
type roleState struct {
	brought bool                // whether a set in this member contains the role
	there   bool                // whether the member contains the role from the set
	problem *protocol.SetObject // problem with the role in the set's state; nil if there is none
}

// roleState returns the state of a role. It sends no requests, because the role is in the cache.
func (l *leadership) roleState(role string) roleState {
	r := ref{kind: kindClusterRole, name: role}
	now, known := l.cache.get(r)
	l.state.mu.Lock()
	owner := l.state.owners[r]
	var found roleState
	for id := range l.state.roles.bring[role] {
		found.brought = true
		found.there = found.there || known && !now.deleting && now.mark != 0 && now.set == set.Label(id)
	}
	l.state.mu.Unlock()
	for _, o := range l.publisher.state(owner).Objects {
		if o.Object == r.String() {
			found.problem = &o
		}
	}
	return found
}

// whyNotBound returns the reason why a role must not be bound, or "" if it may be bound. A role that another client
// created or keeps changing could grant unintended rights. away is true if an existing binding must be removed.
func (s roleState) whyNotBound(role string, passes int) (phase protocol.SetPhase, message string, away bool) {
	altered := s.problem != nil && (s.problem.Phase == protocol.SetConflict || s.problem.Phase == protocol.SetFighting)
	switch {
	case altered:
		return s.problem.Phase,
			fmt.Sprintf("it is not bound while %s differs from what Drover applies: %s", s.problem.Object,
				s.problem.Message), true
	case s.there:
		return "", "", false
	case s.problem != nil:
		return s.problem.Phase, fmt.Sprintf("it waits for %s: %s", s.problem.Object, s.problem.Message), false
	case passes < patientPasses:
		return protocol.SetPending, fmt.Sprintf("it waits for ClusterRole %s", role), !s.brought
	}
	return protocol.SetRoleMissing,
		fmt.Sprintf("it is not bound: ClusterRole %s, which its role template delivers, is missing; see the status of the "+
			"RoleTemplate on the hub", role), !s.brought
}

// bindable returns the items, except bindings whose roles must not be bound. It reports these bindings, and removes
// them from the member if necessary.
func (p *pass) bindable(ctx context.Context, items []item) []item {
	known := map[string]roleState{}
	return slices.DeleteFunc(slices.Clone(items), func(it item) bool {
		if !ofSet(it.role) || p.failed(it.ref) {
			return false
		}
		role, asked := known[it.role]
		if !asked {
			role = p.leader.roleState(it.role)
			known[it.role] = role
		}
		phase, message, away := role.whyNotBound(it.role, p.leader.queue.NumRequeues(p.set.id))
		if phase == "" {
			return false
		}
		p.problem(it.ref, phase, message)
		if away {
			p.unbind(ctx, it.ref, message)
		}
		return true
	})
}

// waits reports whether a binding is waiting for a role that will soon be applied.
func (p *pass) waits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for r, o := range p.problems {
		if o.Phase == protocol.SetPending && r.kind != kindNamespace {
			return true
		}
	}
	return false
}

// unbind removes a binding to a role that another client has changed or that no set contains anymore.
func (p *pass) unbind(ctx context.Context, r ref, why string) {
	if now, known := p.leader.cache.get(r); !known || now.set != p.set.label {
		return
	}
	p.leader.options.Log.Info("removing a binding", "object", r.String(), "set", p.set.id, "reason", why)
	if err := p.leader.delete(ctx, p.set.id, r); err != nil {
		p.fail(ctx, r, fmt.Errorf("it could not be removed, although %s: %w", why, err))
		return
	}
	p.leader.state.mu.Lock()
	delete(p.leader.state.applied, r)
	p.leader.state.mu.Unlock()
}
