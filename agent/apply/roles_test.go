// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/test/testkit"
)

// may waits until the API server allows a user to do something with pods, or forbids it, whichever is expected.
func (m *fixture) may(t *testing.T, user, verb string, want bool) {
	t.Helper()
	testkit.Eventually(t, patience, func(ctx context.Context) error {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               user,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "kube-system", Resource: "pods", Verb: verb}}}
		if err := m.Client.Create(ctx, review); err != nil {
			return err
		}
		if review.Status.Allowed != want {
			return fmt.Errorf("got that %s may %s pods: %t: %s", user, verb, review.Status.Allowed, review.Status.Reason)
		}
		return nil
	})
}

// foreignRole creates a ClusterRole in the same way as a user.
func (m *fixture) foreignRole(t *testing.T, name, verb string) *rbacv1.ClusterRole {
	t.Helper()
	o := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{verb}}}}
	if err := m.Client.Create(t.Context(), o, client.FieldOwner("admin")); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestForeignRoles checks that a binding grants the rights that the hub granted, or none.
func TestForeignRoles(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	a := m.lead(t)
	roleSet := func(t *testing.T, name string) *set.Set {
		id := "role/" + name
		return newSet(t, id, objectsOf(id, role("drover:cluster:"+name, "get")))
	}
	bindingSet := func(t *testing.T, name string) *set.Set {
		id := "crtb/" + name
		return newSet(t, id, objectsOf(id, binding("drover:crtb:"+name, "drover:cluster:"+name, name)))
	}
	bound := func(name string) *rbacv1.ClusterRoleBinding {
		return &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "drover:crtb:" + name}}
	}
	conflict := func(t *testing.T, state protocol.SetState) {
		t.Helper()
		if state.Phase != protocol.SetConflict || len(state.Objects) != 1 ||
			!strings.Contains(state.Objects[0].Message, "not Drover's") {
			t.Errorf("got the state %+v, want a conflict about one object that is not Drover's", state)
		}
	}
	t.Run("a role that existed before is not bound until it is deleted, and the binding reports that", func(t *testing.T) {
		theirs := m.foreignRole(t, "drover:cluster:before", "delete")
		a.put(t, roleSet(t, "before"))
		conflict(t, a.put(t, bindingSet(t, "before")))
		m.gone(t, bound("before"))
		m.may(t, "before", "delete", false)
		if err := m.Client.Delete(t.Context(), theirs); err != nil {
			t.Fatal(err)
		}
		a.put(t, roleSet(t, "before"))
		a.await(t, "role/before", protocol.SetApplied)
		a.await(t, "crtb/before", protocol.SetApplied)
		m.may(t, "before", "get", true)
		m.may(t, "before", "delete", false)
	})
	t.Run("a binding that comes before its role waits, and grants no rights of a foreign role", func(t *testing.T) {
		m.foreignRole(t, "drover:cluster:early", "delete")
		if state := a.put(t, bindingSet(t, "early")); state.Phase != protocol.SetPending {
			t.Errorf("got the state %+v, want SetPending", state)
		}
		m.gone(t, bound("early"))
		a.put(t, roleSet(t, "early"))
		conflict(t, a.await(t, "crtb/early", protocol.SetConflict))
		m.may(t, "early", "delete", false)
	})
	t.Run("a binding that comes before its role is applied with the role", func(t *testing.T) {
		a.put(t, bindingSet(t, "late"))
		a.applied(t, roleSet(t, "late"))
		a.await(t, "crtb/late", protocol.SetApplied)
		m.may(t, "late", "get", true)
	})
	t.Run("a binding whose role never comes reports the missing role", func(t *testing.T) {
		a.put(t, bindingSet(t, "never"))
		if state := a.await(t, "crtb/never", protocol.SetRoleMissing); !strings.Contains(state.Objects[0].Message,
			"RoleTemplate") {
			t.Errorf("got the state %+v, want the missing RoleTemplate", state)
		}
		m.gone(t, bound("never"))
		a.remove(t, "crtb/never")
	})
	t.Run("a role that replaces ours later removes the binding", func(t *testing.T) {
		replaced(t, m, a, roleSet(t, "replaced"), bindingSet(t, "replaced"), bound("replaced"))
		m.may(t, "replaced", "delete", false)
	})
	t.Run("a role that replaces ours removes the bindings in a project too", func(t *testing.T) {
		m.Apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "web",
			Labels: map[string]string{v1.LabelProject: "shop"}}})
		id := "prtb/shop"
		template := binding("drover:prtb:shop", "drover:cluster:shop", "shop")
		template["kind"] = "RoleBinding"
		bound := newSet(t, id,
			set.Content{PerNamespace: &set.PerNamespace{Project: "shop",
				Templates: []set.Template{{Object: objectsOf(id, template).Objects[0]}}}})
		replaced(t, m, a, roleSet(t, "shop"), bound, &rbacv1.RoleBinding{ObjectMeta: namespaced("web", "drover:prtb:shop")})
	})
	t.Run("removing a role removes its bindings", func(t *testing.T) {
		a.applied(t, roleSet(t, "taken"))
		a.applied(t, bindingSet(t, "taken"))
		a.remove(t, "role/taken")
		m.eventuallyGone(t, bound("taken"))
	})
	t.Run("an agent that starts keeps valid bindings, and finds roles that changed meanwhile", func(t *testing.T) {
		for _, name := range []string{"kept", "changed"} {
			a.applied(t, roleSet(t, name))
			a.applied(t, bindingSet(t, name))
		}
		kept := bound("kept")
		m.there(t, kept)
		a.stop()
		if err := m.Client.Delete(t.Context(),
			&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "drover:cluster:changed"}}); err != nil {
			t.Fatal(err)
		}
		m.foreignRole(t, "drover:cluster:changed", "delete")
		next := m.lead(t)
		next.await(t, "crtb/kept", protocol.SetApplied)
		conflict(t, next.await(t, "crtb/changed", protocol.SetConflict))
		m.eventuallyGone(t, bound("changed"))
		again := bound("kept")
		if m.there(t, again); again.UID != kept.UID {
			t.Error("the binding was created again, want it kept")
		}
	})
}

// replaced replaces our role with an administrator's role of the same name, and checks that the binding is removed.
func replaced(t *testing.T, m *fixture, a *agent, roles, bindings *set.Set, bound client.Object) {
	t.Helper()
	a.applied(t, roles)
	a.applied(t, bindings)
	m.there(t, bound)
	_, content, err := set.Parse(roles.JSON())
	if err != nil {
		t.Fatal(err)
	}
	name := content.Objects[0].GetName()
	// The agent creates a deleted role again, so the administrator is faster only sometimes.
	testkit.Eventually(t, patience, func(ctx context.Context) error {
		ours := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := m.Client.Delete(ctx, ours); client.IgnoreNotFound(err) != nil {
			return err
		}
		theirs := ours.DeepCopy()
		theirs.ResourceVersion, theirs.UID = "", ""
		theirs.Rules = []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"delete"}}}
		if err := m.Client.Create(ctx, theirs, client.FieldOwner("admin")); err != nil {
			return err
		}
		return nil
	})
	a.await(t, roles.ID, protocol.SetConflict)
	// The rest of the message depends on whether the agent saw the role right after its creation or after a change.
	if state := a.await(t, bindings.ID, protocol.SetConflict); !strings.Contains(state.Objects[0].Message,
		"it is not bound while ClusterRole "+name) {
		t.Errorf("got the state %+v, want a message that names the ClusterRole", state)
	}
	m.eventuallyGone(t, bound)
}

func (m *fixture) eventuallyGone(t *testing.T, o client.Object) {
	t.Helper()
	testkit.Eventually(t, patience, func(ctx context.Context) error {
		if err := m.Client.Get(ctx, client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
			return fmt.Errorf("got %s, want it deleted: %w", o.GetName(), err)
		}
		return nil
	})
}
