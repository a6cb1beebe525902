// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/portal/catalog"
	"github.com/drover-dev/drover/test/testkit"
)

func (h *hub) workspaces(who index.Principals) (map[string]index.Principals, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.unsure {
		return nil, errors.New("not all bindings have been read")
	}
	all := map[string]index.Principals{}
	for name := range h.bound[who.User] {
		all[name.Namespace] = index.Principals{User: who.User}
	}
	return all, nil
}

func (h *hub) isBound(_ context.Context, id identity.Identity, name types.NamespacedName) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.unsure {
		return false, errors.New("not all bindings have been read")
	}
	return h.bound[id.User][name], nil
}

// bind changes whether a user reaches a Cluster by a binding.
func (h *hub) bind(user string, c client.Object, reaches bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.bound[user] == nil {
		h.bound[user] = map[types.NamespacedName]bool{}
	}
	h.bound[user][client.ObjectKeyFromObject(c)] = reaches
}

func (h *hub) sure(sure bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unsure = !sure
}

func TestUsersSeeAPartOfTheClustersThatTheyCanReach(t *testing.T) {
	t.Parallel()
	h := newHub(t, testkit.Shared(t))
	a, b := h.Workspace(t), h.Workspace(t)
	alice, stranger := "alice-"+a, "stranger-"+a
	one, two := h.cluster(t, a, "one", "v1"), h.cluster(t, a, "two", "v1")
	h.cluster(t, b, "hidden", "v1")
	h.bind(alice, one, true)
	query := "?kind=clusters&namespace=" + a + "&namespace=" + b
	some, nothing := h.follow(t, alice, query), h.follow(t, stranger, query)
	some.until("clusters", a+"/one") // a part has no labels, so the client does not see "v1"
	nothing.bookmarked()

	t.Run("a change is sent, and changes of other Clusters are not", func(t *testing.T) {
		n := len(some.seen)
		h.show(t, two, "v2")
		h.show(t, one, "v2")
		for !changedSince(some.seen[n:], "one") {
			if err := some.read(); err != nil {
				t.Fatal(err)
			}
		}
		if changedSince(some.seen[n:], "two") {
			t.Error("the user got a Cluster that they cannot reach")
		}
	})
	t.Run("a binding is created and ends", func(t *testing.T) {
		n := len(some.seen)
		h.bind(alice, two, true)
		some.until("clusters", a+"/one", a+"/two")
		h.bind(alice, two, false)
		some.until("clusters", a+"/one")
		for _, m := range some.seen[n:] {
			if m.Type == typeReset || m.Object == "one" {
				t.Errorf("the client got %+v, want only messages about the Cluster of the binding", m)
			}
		}
	})
	t.Run("a changed Cluster is no longer selected", func(t *testing.T) {
		third := h.cluster(t, a, "three", "")
		h.bind(alice, third, true)
		some.until("clusters", a+"/one", a+"/three")
		h.bind(alice, third, false)
		h.show(t, third, "v2")
		some.until("clusters", a+"/one")
	})
	t.Run("a right to watch shows all of it", func(t *testing.T) {
		right := h.grant(t, alice, a)
		some.until("clusters", a+"/onev2", a+"/twov2", a+"/threev2")
		h.remove(t, right)
		some.until("clusters", a+"/one")
	})
	t.Run("unknown bindings change nothing", func(t *testing.T) {
		h.sure(false)
		defer h.sure(true)
		h.show(t, one, "v2b")
		some.bookmarkedIncomplete(t)
		if _, has := some.has["clusters/"+a+"/one"]; !has || len(some.has) != 1 {
			t.Errorf("the client has %v, want the Cluster from before", some.has)
		}
		late := h.follow(t, alice, query)
		late.bookmarked()
		if len(late.has) > 0 {
			t.Errorf("a new stream has %v, want nothing while bindings are unknown", late.has)
		}
	})
	t.Run("a stream is resumed only if the user reaches the same Clusters", func(t *testing.T) {
		mark := h.follow(t, alice, query).bookmarked()
		again := h.follow(t, alice, query+"&resume="+mark)
		h.show(t, one, "v3") // the first message
		if err := again.read(); err != nil || again.seen[0].Type == typeReset {
			t.Errorf("the resumed stream starts with %+v (%v), want the change only", again.seen[0], err)
		}
		h.bind(alice, two, true)
		other := h.follow(t, alice, query+"&resume="+mark)
		other.until("clusters", a+"/one", a+"/two")
		some.until("clusters", a+"/one", a+"/two") // or it could show Cluster two and its end later
		h.bind(alice, two, false)
		some.until("clusters", a+"/one")
	})
	t.Run("a deletion is sent, and deletions of other Clusters are not", func(t *testing.T) {
		n := len(some.seen)
		h.remove(t, two)
		h.remove(t, one)
		some.until("clusters")
		for _, m := range some.seen[n:] {
			if m.Type == typeDeleted && m.Object != "one" {
				t.Errorf("the user learned that %v was deleted", m.Object)
			}
		}
	})
	t.Run("clusters/proxy shows all Clusters of a workspace", func(t *testing.T) {
		h.mayProxy(t, alice, b)
		some.until("clusters", b+"/hidden")
	})
	t.Run("a user without bindings learns nothing", func(t *testing.T) {
		last := h.cluster(t, a, "last", "")
		h.bind(stranger, last, true)
		nothing.until("clusters", a+"/last") // all earlier changes have been read
		for _, m := range nothing.seen {
			if (m.Type == typeChanged || m.Type == typeDeleted) && m.Object != "last" {
				t.Errorf("the stranger got %+v", m)
			}
		}
	})
}

func changedSince(seen []message, name string) bool {
	for _, m := range seen {
		if m.Type == typeChanged && m.Object == name {
			return true
		}
	}
	return false
}

// bookmarkedIncomplete reads until a bookmark says that the user may reach more Clusters.
func (c *follower) bookmarkedIncomplete(t *testing.T) {
	t.Helper()
	for {
		if n := len(c.seen); n > 0 && len(c.seen[n-1].Incomplete) > 0 {
			return
		}
		if err := c.read(); err != nil {
			t.Fatal(err)
		}
	}
}

// mayProxy grants a user the right to get clusters/proxy in a workspace.
func (h *hub) mayProxy(t *testing.T, user, namespace string) {
	t.Helper()
	h.Apply(t, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "proxy"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{v1.Group}, Resources: []string{"clusters/proxy"},
			Verbs: []string{"get"}}}})
	h.Apply(t, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "proxy"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "proxy"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}})
}

func TestPartOfAClusterHasNothingElse(t *testing.T) {
	c := cluster("a", "one", 7)
	c.UID, c.Labels, c.Annotations = "u1", map[string]string{"secret-label": "x"}, map[string]string{"note": "secret-note"}
	c.Spec.AuthorizedEndpoint = v1.AuthorizedEndpoint{
		Server: "https://one:6443", TLSSecretName: "secret-name",
	}
	c.Status.Version = "v1.36.3"
	c.Status.Agent = &v1.AgentStatus{Image: "secret-image"}
	for _, condition := range []string{"Ready", "Connected"} {
		meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{Type: condition, Status: metav1.ConditionFalse,
			Reason: "TunnelLost", Message: "secret-message"})
	}
	f := New(Options{}).feeds[resourceClusters]
	data, err := f.partOf(object{NamespacedName: client.ObjectKeyFromObject(c), uid: c.UID, content: c})
	if err != nil {
		t.Fatal(err)
	}
	var got, want any
	expected := fmt.Sprintf(`{"type":"CHANGED","kind":"clusters","partial":true,"object":{
		"kind":"Cluster","apiVersion":%q,"metadata":{"namespace":"a","name":"one","uid":"u1"},
		"spec":{"authorizedEndpoint":{"server":"https://one:6443"}},
		"status":{"version":"v1.36.3","conditions":[{"type":"Ready","status":"False","reason":"TunnelLost"}]}}}`,
		v1.GroupVersion)
	if err := errors.Join(json.Unmarshal(data, &got), json.Unmarshal([]byte(expected), &want)); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || strings.Contains(string(data), "secret") {
		t.Errorf("the message is\n%s\nwant\n%s", data, expected)
	}
}

func TestOnlyClustersOfChangedBindingsAreCheckedAgain(t *testing.T) {
	at := func(name string) types.NamespacedName {
		workspace, cluster, _ := strings.Cut(name, "/")
		return types.NamespacedName{Namespace: workspace, Name: cluster}
	}
	names := func(all ...string) map[types.NamespacedName]types.UID {
		found := map[types.NamespacedName]types.UID{}
		for _, name := range all {
			name, uid, _ := strings.Cut(name, " ")
			found[at(name)] = types.UID(uid)
		}
		return found
	}
	for name, tt := range map[string]struct {
		before, now, keeps map[types.NamespacedName]types.UID
		recheck            []types.NamespacedName
	}{
		"the first review that succeeds": {nil, names("a/one 1"), names(), []types.NamespacedName{at("a/one")}},
		"nothing changed":                {names("a/one 1"), names("a/one 1"), names("a/one 1"), nil},
		"bindings begin and end": {names("a/one 1", "a/two 2"), names("a/two 2", "a/three 3"), names("a/one 1", "a/two 2"),
			[]types.NamespacedName{at("a/one"), at("a/three")}},
		"a Cluster was created again": {names("a/one 1"), names("a/one 2"), names("a/one 1"),
			[]types.NamespacedName{at("a/one")}},
		"the user sees the workspaces by a right": {names("seen/one 1", "proxy/one 1"), names("seen/two 2", "proxy/one 2"),
			names("seen/two 2", "proxy/one 2"), nil},
	} {
		k := &watched{scope: scope{workspaces: map[string]bool{"seen": true}},
			reach: reach{scope: scope{workspaces: map[string]bool{"proxy": true}}, names: tt.now}}
		k.compare(tt.before)
		if !slices.Equal(k.recheck, tt.recheck) || !maps.Equal(k.reach.names, tt.keeps) {
			t.Errorf("%s: checks %v and keeps %v, want %v and %v", name, k.recheck, k.reach.names, tt.recheck, tt.keeps)
		}
	}
}

func TestClusterThatIsCreatedAgainIsAnotherCluster(t *testing.T) {
	reaches := false
	no := func(context.Context, identity.Identity, types.NamespacedName) (bool, error) { return false, nil }
	s := New(Options{Now: time.Now, Reach: catalog.Ways{Proxy: no,
		Bound: func(context.Context, identity.Identity, types.NamespacedName) (bool, error) { return reaches, nil }},
		Watch: func(context.Context, identity.Identity, string, string) (bool, error) { return false, nil }})
	f, st := s.feeds[resourceClusters], &stream{Server: s}
	record := func(uid types.UID, version int) object {
		c := cluster("a", "one", version)
		c.UID = uid
		f.put(c, false)
		batch, _ := f.after(0, batch)
		return batch[len(batch)-1]
	}
	before, now := record("old", 1), record("new", 2)
	for name, tt := range map[string]struct {
		record  object
		reaches bool
		want    view
		uid     types.UID // that the stream has shown from then on
	}{
		"the change of the old one":                  {before, true, viewNothing, "old"},
		"the new one, if the user does not reach it": {now, false, viewGone, ""},
		"the new one, if the user reaches it":        {now, true, viewPart, "new"},
		"the old one, if the user reaches neither":   {before, false, viewNothing, "old"},
	} {
		reaches = tt.reaches
		k := &watched{feed: f, scope: scope{workspaces: map[string]bool{}}, reach: reach{
			scope: scope{workspaces: map[string]bool{}}, bound: map[string]index.Principals{"a": {}},
			names: map[types.NamespacedName]types.UID{now.NamespacedName: "old"},
		}}
		if got := st.view(t.Context(), k, tt.record); got != tt.want || k.reach.names[now.NamespacedName] != tt.uid {
			t.Errorf("%s: view %d, and %q was shown; want %d and %q", name, got, k.reach.names[now.NamespacedName],
				tt.want, tt.uid)
		}
	}
}
