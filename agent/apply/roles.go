// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/drover-dev/drover/internal/expansion"
	"github.com/drover-dev/drover/internal/protocol"
)

// patientPasses is how many passes in a row a binding waits for its role before that counts as a fault: the two are delivered side by side.
const patientPasses = 4

// roleSets are the sets that bring and that bind the ClusterRoles of sets, by the name of the role. The lock of the book guards them.
type roleSets struct {
	bring map[string]map[string]bool
	bind  map[string]map[string]bool
}

func newRoleSets() roleSets {
	return roleSets{bring: map[string]map[string]bool{}, bind: map[string]map[string]bool{}}
}

// follow takes over which roles a set brings and binds.
func (r roleSets) follow(s *set) {
	bring, bind := rolesOf(s)
	for at, names := range map[*map[string]map[string]bool][]string{&r.bring: bring, &r.bind: bind} {
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

// rolesOf are the roles that a set brings, and those that it binds.
func rolesOf(s *set) (bring, bind []string) {
	if s.dead || s.deleting {
		return nil, nil
	}
	objects := slices.Clone(s.wanted.Content.Objects)
	if per := s.wanted.Content.PerNamespace; per != nil {
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

// boundRole is the ClusterRole that a binding binds, empty for what is no binding of one.
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

// ofSet says whether a role of that name is one that a set brings. Others are the member's own.
func ofSet(role string) bool { return strings.HasPrefix(role, expansion.RolePrefix) }

// wakeBinders has the sets looked at that bind roles.
func (t *term) wakeBinders(roles ...string) {
	t.book.mu.Lock()
	defer t.book.mu.Unlock()
	for _, role := range roles {
		for id := range t.book.roles.bind[role] {
			t.agenda.at(id, t.options.Now())
		}
	}
}

// standing is what is known of a role that a set is to bring.
type standing struct {
	brought bool                // a set here brings it
	there   bool                // the member has it, as an object of that set
	problem *protocol.SetObject // what the state of that set says of it; nil if nothing
}

// standing of a role. Nothing is asked of the API server: the set that brings the role has looked at what is there.
func (t *term) standing(role string) standing {
	r := ref{kind: kindClusterRole, name: role}
	now, known := t.world.get(r)
	t.book.mu.Lock()
	owner := t.book.owners[r]
	var found standing
	for id := range t.book.roles.bring[role] {
		found.brought = true
		found.there = found.there || known && !now.gone && !now.deleting && now.mark != 0 && now.set == expansion.SetLabel(id)
	}
	t.book.mu.Unlock()
	for _, o := range t.board.state(owner).Objects {
		if o.Object == r.String() {
			found.problem = &o
		}
	}
	return found
}

// refusal says why a role must not be bound: empty if it may be. A role that somebody else has made, or keeps changing, would grant what the
// hub does not know of. away says that a binding that is there already must go.
func (s standing) refusal(role string, passes int) (phase protocol.SetPhase, message string, away bool) {
	altered := s.problem != nil && (s.problem.Phase == protocol.SetConflict || s.problem.Phase == protocol.SetFighting)
	switch {
	case altered:
		return s.problem.Phase, fmt.Sprintf("it is not bound while %s is not as Drover makes it: %s", s.problem.Object, s.problem.Message), true
	case s.there:
		return "", "", false
	case s.problem != nil:
		return s.problem.Phase, fmt.Sprintf("it waits for %s: %s", s.problem.Object, s.problem.Message), false
	case passes < patientPasses:
		return protocol.SetPending, fmt.Sprintf("it waits for ClusterRole %s", role), !s.brought
	}
	return protocol.SetRoleMissing, fmt.Sprintf("it is not bound: ClusterRole %s, which comes with its role template, is not here; see the status of the RoleTemplate on the hub", role), !s.brought
}

// bindable leaves out bindings whose role must not be bound, says so, and removes those that are there.
func (p *pass) bindable(ctx context.Context, items []item) []item {
	known := map[string]standing{}
	return slices.DeleteFunc(slices.Clone(items), func(it item) bool {
		if !ofSet(it.role) || p.failed(it.ref) {
			return false
		}
		role, asked := known[it.role]
		if !asked {
			role = p.standing(it.role)
			known[it.role] = role
		}
		phase, message, away := role.refusal(it.role, p.set.failures)
		if phase == "" {
			return false
		}
		p.problem(it.ref, phase, message)
		if away {
			p.unbind(ctx, it.ref)
		}
		return true
	})
}

// waits says whether a binding waits for a role that is about to come.
func (p *pass) waits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.problems {
		if o.Phase == protocol.SetPending {
			return true
		}
	}
	return false
}

// unbind removes a binding of the set.
func (p *pass) unbind(ctx context.Context, r ref) {
	if now, known := p.world.get(r); !known || now.set != p.set.label {
		return
	}
	p.log().Info("removing a binding whose role is not Drover's", "object", r.String(), "set", p.set.id)
	if err := p.delete(ctx, r); err != nil && ctx.Err() == nil {
		phase, message := explain(r, err)
		p.problem(r, phase, "it binds a role that is not Drover's, and cannot be removed: "+message)
		return
	}
	p.book.mu.Lock()
	delete(p.book.applied, r)
	p.book.mu.Unlock()
}
