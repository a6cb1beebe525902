// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/chromium"
	"github.com/drover-dev/drover/test/testkit"
)

// TestPeopleSeeTheirFleetInARealBrowser signs a user in on the hub's page by keyboard. The user then looks at clusters
// and imports one.
func TestPeopleSeeTheirFleetInARealBrowser(t *testing.T) {
	t.Parallel()
	chromium.Find(t) // before a hub is started
	h := &trustingHub{file: filepath.Join(t.TempDir(), "authentication.yaml")}
	s := build(t)
	h.system = s
	h.install(t, s)
	secret := makeUser(t, s, "alice")
	token := signIn(t, s, "alice", secret)
	h.trust(t)
	h.awaitAlice(t, token)
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "fleet"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{v1.Group}, Resources: []string{"clusters", "plans"}, Verbs: []string{"watch", "create"}}, {APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}},
	}}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "fleet"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "local:alice"}},
	}
	hidden := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hidden"}}
	web := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web", Labels: map[string]string{"env": "prod"}}}
	for _, o := range []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, role, binding, web, hidden} {
		if err := s.hub.Client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	p := person{Page: chromium.Open(t, true), t: t, hub: s.hub.URL()}
	p.Go(s.hub.URL() + "/")
	p.sees("", "heading: Sign in to Drover", "button: Sign in to the hub")
	p.tabTo("button: Sign in to the hub")
	p.Press("Enter")
	p.sees("textbox: User name", "RootWebArea: Sign in to Drover")
	p.Type("alice")
	p.Press("Tab")
	p.Type(secret)
	p.Press("Enter")
	p.sees("", "heading: Overview", "link: Clusters", "StaticText: local:alice")
	p.tabTo("link: Clusters")
	p.Press("Enter")
	p.sees("heading: Clusters", "link: web", "StaticText: Waiting for its agent")
	p.fits()
	t.Run("one Cluster, with what is wrong and what to do", func(t *testing.T) {
		p.t = t
		p.tabTo("link: web")
		p.Press("Enter")
		p.sees("heading: web", "heading: Connect this cluster", "StaticText: The agent joins: run the command below")
		p.fits()
		p.Evaluate(`history.back()`, nil)
		p.sees("heading: Clusters")
	})
	t.Run("a cluster is imported", func(t *testing.T) {
		p.t = t
		p.tabTo("button: Import a cluster")
		p.Press("Enter")
		p.sees("combobox: Workspace (a namespace of the hub)", "dialog: Import a cluster", "button: Create")
		p.Type("team")
		p.Press("Tab")
		p.Type("shop")
		p.Press("Enter")
		testkit.Eventually(t, time.Minute, p.has("kubectl apply --server-side"))
		p.Press("Escape")
		p.sees("", "link: shop")
	})
	t.Run("why can't I", func(t *testing.T) {
		p.t = t
		p.tabTo("link: Access")
		p.Press("Enter")
		p.tabTo("link: Why can’t I?")
		p.Press("Enter")
		p.tabToRole("combobox: Cluster (workspace/name)")
		p.Type("team/web")
		p.tabToRole("textbox: Resource")
		p.Type("pods")
		p.Press("Enter")
		testkit.Eventually(t, time.Minute, p.has(`may not reach cluster "team/web" through the hub; ask for`))
	})
	t.Run("what the user may not watch is nowhere", func(t *testing.T) {
		var text string
		p.Evaluate(`document.documentElement.textContent`, &text)
		if strings.Contains(text, "hidden") {
			t.Error("the page has a Cluster of another workspace")
		}
	})
	t.Run("a reload asks for no password", func(t *testing.T) {
		p.t = t
		p.Go(s.hub.URL() + "/ui/#/clusters?q=shop") // only the fragment changes, so this is no reload
		p.sees("heading: Clusters", "link: shop")   // a reload before this could load the address of the view before
		p.Evaluate(`document.body.dataset.before = "the reload"`, nil)
		p.Call("Page.reload", nil, nil)
		testkit.Eventually(t, time.Minute, func(context.Context) error {
			var before string
			p.Evaluate(`document.body?.dataset.before ?? ""`, &before)
			if before != "" {
				return errors.New("got the document before the reload, want a new one")
			}
			return nil
		})
		p.sees("", "heading: Clusters", "link: shop")
	})
	t.Run("axe finds nothing", func(t *testing.T) {
		p.t = t
		if found := p.Axe(t); len(found) > 0 {
			t.Errorf("%q", found)
		}
	})
	t.Run("sign-out ends the session", func(t *testing.T) {
		p.t = t
		var refresh string
		p.Evaluate(`sessionStorage.getItem("drover.refresh") ?? ""`, &refresh)
		if refresh != "" {
			t.Error("the refresh token is in the storage of the tab while the page is open: a duplicated tab would have it")
		}
		p.Evaluate(`dispatchEvent(new PageTransitionEvent("pagehide")); sessionStorage.getItem("drover.refresh")`, &refresh)
		p.tabTo("DisclosureTriangle: Account of local:alice")
		p.Press("Enter")
		p.tabTo("button: Sign out")
		p.Press("Enter")
		p.sees("", "button: Sign in to the hub")
		var answer string
		p.Evaluate(`fetch("/v1/auth/token", {method: "POST", body: new URLSearchParams({client_id: "kubectl", grant_type: "refresh_token", refresh_token: "`+refresh+`"})}).then(r => r.text())`, &answer)
		if refresh == "" || !strings.Contains(answer, "invalid_grant") {
			t.Errorf("refresh token %t, and then it is answered with %s", refresh != "", answer)
		}
	})
	for _, problem := range p.Problems() {
		if !strings.Contains(problem, "status of 40") && !strings.Contains(problem, "Password field") && !strings.Contains(problem, "NavigationEntryMarkedSkippable") { // this test changed the address, not a person
			t.Errorf("the browser complains: %s", problem)
		}
	}
	for _, address := range p.Requests() {
		if !strings.HasPrefix(address, s.hub.URL()+"/") {
			t.Errorf("the page asked %s", address)
		}
	}
}

// tabTo presses Tab until the focus is on an element.
func (p *person) tabTo(wanted string) {
	p.t.Helper()
	p.tab(func(e chromium.Element) bool { return e.Role+": "+e.Name == wanted }, wanted)
}

// tabToRole is like tabTo, for an element whose name begins with the given text.
func (p *person) tabToRole(wanted string) {
	p.t.Helper()
	p.tab(func(e chromium.Element) bool { return strings.HasPrefix(e.Role+": "+e.Name, wanted) }, wanted)
}

func (p *person) tab(is func(chromium.Element) bool, wanted string) {
	p.t.Helper()
	for range 40 {
		all, err := p.Elements()
		if err == nil && slices.ContainsFunc(all, func(e chromium.Element) bool { return e.Focused && is(e) }) {
			return
		}
		p.Press("Tab")
	}
	all, _ := p.Elements()
	p.t.Fatalf("Tab does not lead to %q among\n%s", wanted, chromium.String(all))
}

// has returns a check that the page contains a text.
func (p *person) has(text string) func(context.Context) error {
	return func(context.Context) error {
		var all string
		p.Evaluate(`document.documentElement.textContent`, &all)
		if !strings.Contains(all, text) {
			return errors.New("the page does not have " + text + ": " + all)
		}
		return nil
	}
}
