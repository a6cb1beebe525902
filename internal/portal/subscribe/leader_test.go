// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/test/testkit"
)

// untilUnmanaged reads until a bookmark that reports whether no manager leads.
func (c *follower) untilUnmanaged(want bool) {
	c.t.Helper()
	for c.bookmarked(); c.seen[len(c.seen)-1].Unmanaged != want; c.bookmarked() {
	}
}

func TestUsersWhoMayReadTheLeaseAreToldThatNoManagerLeads(t *testing.T) {
	h := newHub(t, testkit.Shared(t))
	workspace := h.Workspace(t)
	stranger, alice, query := "stranger-"+workspace, "alice-"+workspace, "?kind=clusters&namespace="+workspace
	name := metav1.ObjectMeta{Namespace: lease.Namespace, Name: "lease-reader-" + workspace}
	h.Apply(t, &rbacv1.Role{ObjectMeta: name, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{lease.Name},
		Verbs: []string{"get"},
	}}})
	h.Apply(t, &rbacv1.RoleBinding{
		ObjectMeta: name, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: alice}},
	})
	for _, user := range []string{stranger, alice} {
		h.grant(t, user, workspace)
	}
	reader, other := h.follow(t, alice, query), h.follow(t, stranger, query)
	reader.untilUnmanaged(false)
	other.untilUnmanaged(false)

	h.unled.Store(true)
	reader.untilUnmanaged(true)
	h.cluster(t, workspace, "web", "")
	other.until("clusters", workspace+"/web")
	other.bookmarked()
	for _, m := range other.seen {
		if m.Unmanaged {
			t.Errorf("a user who may not read the Lease got %+v, want nothing about it", m)
		}
	}
	h.unled.Store(false)
	reader.untilUnmanaged(false)
}
