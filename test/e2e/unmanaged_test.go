// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/test/chromium"
	"github.com/drover-dev/drover/test/testkit"
)

// TestLong_ThePageSaysThatNoManagerLeads removes the manager's right to renew its Lease. The manager then ends, starts
// again, and serves the page without leading. The user has signed in to the hub and has no rights.
func TestLong_ThePageSaysThatNoManagerLeads(t *testing.T) {
	t.Parallel()
	chromium.Find(t) // before a hub is started
	s := startWith(t, (*system).startSignIn)
	token := signIn(t, s, "alice", makeUser(t, s, "alice"))
	p := person{Page: chromium.Open(t, true), t: t, hub: s.hub.URL()}
	p.Go(s.hub.URL() + "/ui/")
	p.sees("", "button: Sign in to the hub")
	p.Evaluate(`document.querySelector("details").open = true; document.querySelector("input").focus()`, nil)
	p.Type(token)
	p.Press("Enter")
	p.sees("", "link: Clusters", "StaticText: Live")

	const says = "No manager leads: no one watches the fleet, and the states on this page are out of date."
	shows := func(want string) {
		t.Helper()
		testkit.Eventually(t, 90*time.Second, func(context.Context) error {
			var text string
			if p.Evaluate(`document.querySelector("[role=alert]").textContent`, &text); text != want {
				return fmt.Errorf("the page says %q, want %q", text, want)
			}
			return nil
		})
	}
	shows("")
	var role rbacv1.Role
	name := types.NamespacedName{Namespace: "drover-system", Name: "drover-manager"}
	if err := s.hub.Client.Get(t.Context(), name, &role); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
		return slices.Equal(r.ResourceNames, []string{"drover-manager"}) && slices.Contains(r.Resources, "leases")
	})
	if i < 0 {
		t.Fatalf("the manager's Role has no rule about its Lease: %+v", role.Rules)
	}
	verbs := role.Rules[i].Verbs
	role.Rules[i].Verbs = []string{"get"}
	if err := s.hub.Client.Update(t.Context(), &role); err != nil {
		t.Fatal(err)
	}
	shows(says)
	role.Rules[i].Verbs = verbs
	if err := s.hub.Client.Update(t.Context(), &role); err != nil {
		t.Fatal(err)
	}
	shows("")
	p.sees("", "StaticText: Live")
}
