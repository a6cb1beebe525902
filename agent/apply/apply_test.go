// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/agent/apply"
	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/agent/stream"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/tenancy"
	"github.com/drover-dev/drover/test/testkit"
	start "github.com/drover-dev/drover/test/testkit/member"
)

const patience = 20 * time.Second

// fixture is a real API server with the agent's manifest applied, and with agents that have the rights from that
// manifest.
type fixture struct {
	*testkit.Env
	config *rest.Config
}

func newMember(t *testing.T) *fixture {
	t.Helper()
	m := start.Start(t)
	return &fixture{Env: m.Env, config: m.Agent}
}

// agent is one process of the agent, which is the leader.
type agent struct {
	*apply.Applier
	stream *stream.Stream
	counts
	stop func()
}

// counts counts requests.
type counts struct {
	writes *atomic.Int64
	looks  *atomic.Int64 // reads of single ClusterRoleBindings
}

// transport counts requests.
type transport struct {
	next http.RoundTripper
	counts
}

func (c transport) RoundTrip(r *http.Request) (*http.Response, error) {
	switch {
	case r.Method != http.MethodGet:
		c.writes.Add(1)
	case strings.Contains(r.URL.Path, "/clusterrolebindings/"):
		c.looks.Add(1)
	}
	return c.next.RoundTrip(r)
}

// kube returns an agent's client for the member's API server.
func (m *fixture) kube(t *testing.T, wrap func(http.RoundTripper) http.RoundTripper) *kube.Client {
	t.Helper()
	config := rest.CopyConfig(m.config)
	config.QPS = -1
	config.Wrap(wrap)
	c, err := kube.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// lead starts an agent that leads. It stops at the end of the test, or when stop is called.
func (m *fixture) lead(t *testing.T, change ...func(*apply.Options)) *agent {
	t.Helper()
	a := &agent{counts: counts{&atomic.Int64{}, &atomic.Int64{}}, stream: stream.New()}
	c := m.kube(t, func(next http.RoundTripper) http.RoundTripper { return transport{next, a.counts} })
	o := apply.Options{Client: c.REST, Kube: c, Objects: c.Objects(), Secrets: c.Secrets(protocol.AgentNamespace),
		Topic: a.stream.Topic(protocol.SubjectSets), Log: testr.New(t)}
	for _, f := range change {
		f(&o)
	}
	a.Applier = apply.New(o)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { a.Lead(ctx) })
	a.stop = func() { cancel(); running.Wait() }
	t.Cleanup(a.stop)
	testkit.Eventually(t, patience, func(context.Context) error {
		if got := a.ask(t, http.MethodPost, protocol.SetPath("crtb/x"), nil); got.Code != http.StatusMethodNotAllowed {
			return fmt.Errorf("%d", got.Code)
		}
		return nil
	})
	return a
}

func (a *agent) ask(t testing.TB, method, path string, body []byte) *httptest.ResponseRecorder {
	t.Helper()
	answer := httptest.NewRecorder()
	a.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), method, path, bytes.NewReader(body)))
	return answer
}

func (a *agent) state(t testing.TB, answer *httptest.ResponseRecorder) protocol.SetState {
	t.Helper()
	var state protocol.SetState
	if err := json.Unmarshal(answer.Body.Bytes(), &state); err != nil || answer.Code != http.StatusOK {
		t.Fatalf("got %d %s: %v, want 200 with a state", answer.Code, answer.Body, err)
	}
	return state
}

// put sends a set, and waits until the agent has applied it.
func (a *agent) put(t testing.TB, set *set.Set) protocol.SetState {
	t.Helper()
	return a.state(t, a.ask(t, http.MethodPut, protocol.SetPath(set.ID), set.JSON()))
}

func (a *agent) applied(t testing.TB, set *set.Set) protocol.SetState {
	t.Helper()
	state := a.put(t, set)
	// On a busy machine the response may come before the set is applied. The stream then reports the result.
	if state.Phase == protocol.SetPending {
		state = a.await(t, set.ID, protocol.SetApplied)
	}
	if state.Phase != protocol.SetApplied || state.Digest != set.Digest || state.ID != set.ID {
		t.Fatalf("the set with the digest %s: got %+v, want it applied", set.Digest, state)
	}
	return state
}

func (a *agent) remove(t testing.TB, id string) {
	t.Helper()
	if state := a.state(t, a.ask(t, http.MethodDelete, protocol.SetPath(id), nil)); state.Phase != protocol.SetDeleted {
		t.Fatalf("got %+v", state)
	}
}

// await reads the stream of states until the set has the expected phase.
func (a *agent) await(t testing.TB, id string, phase protocol.SetPhase) protocol.SetState {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, w := io.Pipe()
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	defer r.Close()
	running.Go(func() {
		a.stream.ServeHTTP(&streamed{w: w, header: http.Header{}},
			httptest.NewRequestWithContext(ctx, http.MethodGet, protocol.StreamPath(protocol.SubjectSets), nil))
		_ = w.Close()
	})
	var last protocol.SetState
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var line protocol.Line
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		event := line.Set
		if event.State != nil && event.State.ID == id {
			if last = *event.State; last.Phase == phase {
				return last
			}
		}
	}
	t.Fatalf("the state of %s: got %+v, want %s", id, last, phase)
	return last
}

// streamed is an http.ResponseWriter that passes on each write immediately.
type streamed struct {
	w      io.Writer
	header http.Header
}

func (s *streamed) Header() http.Header         { return s.header }
func (s *streamed) Write(p []byte) (int, error) { return s.w.Write(p) }
func (s *streamed) WriteHeader(int)             {}
func (s *streamed) Flush()                      {}

func newSet(t testing.TB, id string, content set.Content, end ...time.Time) *set.Set {
	t.Helper()
	var until *time.Time
	if len(end) > 0 {
		until = &end[0]
	}
	s, err := set.New(id, until, content)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func objectsOf(id string, all ...map[string]any) set.Content {
	var c set.Content
	for _, fields := range all {
		o := &unstructured.Unstructured{Object: fields}
		set.AddLabels(o, set.Labels(id))
		c.Objects = append(c.Objects, o)
	}
	return c
}

func role(name string, verbs ...any) map[string]any {
	return map[string]any{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
		"metadata": map[string]any{"name": name},
		"rules":    []any{map[string]any{"apiGroups": []any{""}, "resources": []any{"pods"}, "verbs": verbs}}}
}

func binding(name, role, user string) map[string]any {
	return map[string]any{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
		"metadata": map[string]any{"name": name},
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
		"subjects": []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}}}
}

func (m *fixture) clusterRole(t testing.TB, name string) *rbacv1.ClusterRole {
	t.Helper()
	o := &rbacv1.ClusterRole{}
	if err := m.Client.Get(t.Context(), client.ObjectKey{Name: name}, o); err != nil {
		t.Fatal(err)
	}
	return o
}

// applyAs applies an object as a field manager.
func (m *fixture) applyAs(t testing.TB, manager string, fields map[string]any) {
	t.Helper()
	o := client.ApplyConfigurationFromUnstructured((&unstructured.Unstructured{Object: fields}).DeepCopy())
	if err := m.Client.Apply(t.Context(), o, client.FieldOwner(manager)); err != nil {
		t.Fatal(err)
	}
}

func (m *fixture) gone(t testing.TB, o client.Object) {
	t.Helper()
	if err := m.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
		t.Errorf("read %T %s: got the error %v, want not found", o, o.GetName(), err)
	}
}

func (m *fixture) there(t testing.TB, o client.Object) {
	t.Helper()
	if err := m.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		t.Errorf("read %T %s: got the error %v, want the object", o, o.GetName(), err)
	}
}

func namespaced(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func TestSets(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	a := m.lead(t)
	guards, err := tenancy.Guards()
	if err != nil {
		t.Fatal(err)
	}
	a.applied(t, newSet(t, set.Guards, guards)) // the guards apply to all subtests

	t.Run("a set is applied when the response comes, and applying it again writes nothing", func(t *testing.T) {
		set := newSet(t, "role/reader", objectsOf("role/reader", role("drover:reader", "get")))
		a.applied(t, set)
		before := m.clusterRole(t, "drover:reader")
		writes := a.writes.Load()
		a.applied(t, set)
		if after := m.clusterRole(t, "drover:reader"); after.ResourceVersion != before.ResourceVersion ||
			a.writes.Load() != writes {
			t.Errorf("applying the set again: got %d writes, want none", a.writes.Load()-writes)
		}
	})
	t.Run("only the objects that left the set are removed", func(t *testing.T) {
		id := "role/two"
		a.applied(t, newSet(t, id, objectsOf(id, role("drover:a", "get"), role("drover:b", "get"))))
		copied := m.clusterRole(t, "drover:a")
		m.Apply(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "copy-of-a", Labels: copied.Labels}})
		a.applied(t, newSet(t, id, objectsOf(id, role("drover:b", "list"))))
		m.gone(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "drover:a"}})
		if got := m.clusterRole(t, "drover:b").Rules[0].Verbs[0]; got != "list" {
			t.Errorf("got the verb %v, want list", got)
		}
		a.remove(t, id)
		m.gone(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "drover:b"}})
		m.there(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "copy-of-a"}})
	})
	t.Run("a binding whose role changes is replaced by a new one", func(t *testing.T) {
		id := "crtb/alice"
		a.applied(t, newSet(t, id, objectsOf(id, binding("drover:crtb:alice:view", "view", "alice"))))
		a.applied(t, newSet(t, id, objectsOf(id, binding("drover:crtb:alice:edit", "edit", "alice"))))
		m.gone(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "drover:crtb:alice:view"}})
		m.there(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "drover:crtb:alice:edit"}})
	})
	t.Run("an object that is not Drover's is reported, and neither changed nor deleted", func(t *testing.T) {
		m.Apply(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}}})
		before := m.clusterRole(t, "theirs")
		id := "role/theirs"
		state := a.put(t, newSet(t, id, objectsOf(id, role("theirs", "get"))))
		if state.Phase != protocol.SetConflict || state.Failed != 1 || state.Objects[0].Object != "ClusterRole theirs" ||
			!strings.Contains(state.Objects[0].Message, "apply.test") {
			t.Errorf("got %+v, want a conflict that names the field manager", state)
		}
		a.remove(t, id)
		if after := m.clusterRole(t, "theirs"); after.ResourceVersion != before.ResourceVersion {
			t.Error("the object was changed, want it unchanged")
		}
	})
	t.Run("a binding to a ClusterRole that the member lacks is reported until it exists", func(t *testing.T) {
		id := "crtb/nothing"
		state := a.put(t, newSet(t, id, objectsOf(id, binding("drover:crtb:nothing:later", "later", "alice"))))
		if state.Phase != protocol.SetRoleMissing || !strings.Contains(state.Objects[0].Message, `no ClusterRole "later"`) {
			t.Errorf("got %+v, want the missing ClusterRole", state)
		}
		m.there(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "drover:crtb:nothing:later"}})
		m.Apply(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "later"}})
		a.await(t, id, protocol.SetApplied)
		a.remove(t, id)
	})
	t.Run("an object without the labels is not Drover's, even if its managedFields name Drover", func(t *testing.T) {
		const name = "drover:forged"
		forged := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := m.Client.Create(t.Context(), forged, client.FieldOwner("rival")); err != nil {
			t.Fatal(err)
		}
		m.applyAs(t, "drover", role(name, "get"))
		id := "role/forged"
		state := a.put(t, newSet(t, id, objectsOf(id, role(name, "list"))))
		if state.Phase != protocol.SetConflict || m.clusterRole(t, name).Rules[0].Verbs[0] != "get" {
			t.Errorf("got %+v, want a conflict and the object unchanged", state)
		}
		a.remove(t, id)
		m.there(t, forged)
	})
	t.Run("a field that a user adds to an object is reported until it is removed", func(t *testing.T) {
		id := "project/scoped"
		quota := func(spec map[string]any) map[string]any {
			return map[string]any{"apiVersion": "v1", "kind": "ResourceQuota",
				"metadata": map[string]any{"namespace": "default", "name": "scoped"}, "spec": spec}
		}
		set := newSet(t, id, objectsOf(id, quota(map[string]any{"hard": map[string]any{"pods": "1"}})))
		labelled := objectsOf(id,
			quota(map[string]any{"hard": map[string]any{"pods": "1"}, "scopes": []any{"BestEffort"}})).Objects[0]
		m.applyAs(t, "rival", labelled.Object)
		state := a.put(t, set)
		if state.Phase != protocol.SetConflict || !strings.Contains(state.Objects[0].Message, `spec.scopes, by "rival"`) {
			t.Errorf("got %+v, want a conflict with the field and its manager", state)
		}
		if err := m.Client.Delete(t.Context(), labelled.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		a.await(t, id, protocol.SetApplied)
		m.applyAs(t, "rival", quota(map[string]any{"hard": map[string]any{"pods": "1"}}))
		a.applied(t, set) // a manager with the same fields adds none
		m.applyAs(t, "rival", quota(map[string]any{"hard": map[string]any{"secrets": "1"}}))
		a.await(t, id, protocol.SetConflict)
		m.applyAs(t, "rival", quota(map[string]any{}))
		a.await(t, id, protocol.SetApplied)
		a.remove(t, id)
	})
	t.Run("an object stays with the first of two sets until that set is removed", func(t *testing.T) {
		a.applied(t, newSet(t, "role/first", objectsOf("role/first", role("drover:shared", "get"))))
		state := a.put(t, newSet(t, "role/second", objectsOf("role/second", role("drover:shared", "list"))))
		if state.Phase != protocol.SetConflict || !strings.Contains(state.Objects[0].Message, "role/first") {
			t.Errorf("got %+v, want a conflict with role/first", state)
		}
		a.remove(t, "role/first")
		a.await(t, "role/second", protocol.SetApplied)
		if got := m.clusterRole(t, "drover:shared").Rules[0].Verbs[0]; got != "list" {
			t.Errorf("got the verb %v, want list", got)
		}
	})
	t.Run("an object that the API server rejects is reported, and the others are applied", func(t *testing.T) {
		id := "role/bad"
		bad := binding("drover:bad", "view", "x")
		bad["subjects"] = []any{map[string]any{"kind": "Robot", "name": "secret-value"}}
		state := a.put(t, newSet(t, id, objectsOf(id, role("drover:good", "get"), bad)))
		if state.Phase != protocol.SetFailed || state.Failed != 1 ||
			strings.Contains(state.Objects[0].Message, "secret-value") {
			t.Errorf("got %+v, want one failure that does not quote the object", state)
		}
		m.clusterRole(t, "drover:good")
		a.remove(t, id)
	})
	t.Run("a kind that agents do not deliver is refused", func(t *testing.T) {
		id := "role/pod"
		pod := map[string]any{"apiVersion": "v1", "kind": "Pod",
			"metadata": map[string]any{"name": "x", "namespace": "default"}}
		if state := a.put(t, newSet(t, id, objectsOf(id, pod))); state.Phase != protocol.SetFailed ||
			!strings.Contains(state.Objects[0].Message, "upgrade") {
			t.Errorf("got %+v, want a failure that says to upgrade the agent", state)
		}
		a.remove(t, id)
	})
	t.Run("changes, deletions and lost labels are repaired", func(t *testing.T) { m.repairs(t, a) })
	t.Run("a project's namespaces get its objects, later ones too, and lose them when they leave",
		func(t *testing.T) { m.project(t, a) })
	t.Run("the next leader keeps the sets without the hub, and writes nothing", func(t *testing.T) {
		a.stop()
		before := m.versions(t)
		b := m.lead(t)
		for _, id := range []string{"role/reader", "crtb/alice", "role/second", set.Guards} {
			b.await(t, id, protocol.SetApplied)
		}
		if after := m.versions(t); after != before {
			t.Errorf("before\n%s\nafter\n%s", before, after)
		}
		t.Run("it removes everything at the end", func(t *testing.T) {
			remaining, err := b.RemoveAll(t.Context())
			if err != nil || len(remaining) > 0 {
				t.Errorf("remove everything: got %v and the error %v, want nothing to remain", remaining, err)
			}
			if left := m.versions(t); strings.Contains(left, "cluster.drover.dev/set") {
				t.Errorf("got the objects %v, want no object of a set", left)
			}
			m.there(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}})
		})
	})
}

// versions returns all Drover objects with their resource versions.
func (m *fixture) versions(t testing.TB) string {
	t.Helper()
	var out strings.Builder
	for _, list := range []client.ObjectList{
		&rbacv1.ClusterRoleList{}, &rbacv1.ClusterRoleBindingList{}, &rbacv1.RoleBindingList{}, &corev1.ResourceQuotaList{},
		&corev1.LimitRangeList{}, &corev1.SecretList{},
	} {
		if err := m.Client.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		var items struct {
			Items []metav1.PartialObjectMetadata
		}
		if err := json.Unmarshal(raw, &items); err != nil {
			t.Fatal(err)
		}
		for _, o := range items.Items {
			if label := o.Labels[v1.LabelSet]; label != "" && len(o.ManagedFields) > 0 &&
				o.ManagedFields[0].Manager == "drover" {
				fmt.Fprintf(&out, "%T %s/%s %s cluster.drover.dev/set=%s\n", list, o.Namespace, o.Name, o.ResourceVersion, label)
			}
		}
	}
	return out.String()
}

func (m *fixture) repairs(t *testing.T, a *agent) {
	id := "role/kept"
	a.applied(t, newSet(t, id, objectsOf(id, role("drover:kept", "get"))))
	whole := func(ctx context.Context) error {
		o := &rbacv1.ClusterRole{}
		if err := m.Client.Get(ctx, client.ObjectKey{Name: "drover:kept"}, o); err != nil {
			return err
		}
		if len(o.Rules) != 1 || o.Rules[0].Verbs[0] != "get" || o.Labels[v1.LabelSet] != "role.kept" {
			return fmt.Errorf("got labels %v and rules %v, want them as they were applied", o.Labels, o.Rules)
		}
		return nil
	}
	change := func(f func(*rbacv1.ClusterRole)) func() {
		return func() {
			testkit.Update(t, m.Client, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "drover:kept"}}, f)
		}
	}
	for name, harm := range map[string]func(){
		"changed":    change(func(o *rbacv1.ClusterRole) { o.Rules[0].Verbs = []string{"*"} }),
		"emptied":    change(func(o *rbacv1.ClusterRole) { o.Rules = nil }),
		"unlabelled": change(func(o *rbacv1.ClusterRole) { o.Labels = nil }),
		"deleted": func() {
			if err := m.Client.Delete(t.Context(), m.clusterRole(t, "drover:kept")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			harm()
			testkit.Eventually(t, patience, whole)
		})
	}
	t.Run("a fight is reported and does not become a hot loop", func(t *testing.T) {
		writes := a.writes.Load()
		fight, end := context.WithTimeout(t.Context(), 2*time.Second)
		defer end()
		for fight.Err() == nil {
			patch := client.RawPatch("application/merge-patch+json",
				[]byte(`{"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["*"]}]}`))
			o := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "drover:kept"}}
			_ = m.Client.Patch(fight, o, patch, client.FieldOwner("rival"))
		}
		state := a.await(t, id, protocol.SetFighting)
		if !strings.Contains(state.Objects[0].Message, `"rival"`) {
			t.Errorf("got %+v, want a fight with \"rival\"", state)
		}
		if spent := a.writes.Load() - writes; spent > 12 {
			t.Errorf("got %d writes in two seconds, want at most 12", spent)
		}
		a.remove(t, id)
	})
}

func (m *fixture) project(t *testing.T, a *agent) {
	hosted := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "hosted",
		Labels: map[string]string{v1.LabelProject: "web"}}}
	m.Apply(t, hosted)
	project := &v1.Project{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1.ProjectSpec{
		Namespaces: []string{"web"}, PodSecurity: v1.PodSecurityBaseline, NetworkIsolation: v1.IsolationProject,
		ResourceQuota: list("pods", "10"), NamespaceDefaultResourceQuota: list("pods", "4"),
	}}
	made := func() *set.Set {
		content, err := tenancy.Content(project, nil)
		if err != nil {
			t.Fatal(err)
		}
		return newSet(t, "project/web", content)
	}
	if state := a.applied(t, made()); state.Namespaces != 2 {
		t.Errorf("got %+v, want 2 namespaces", state)
	}
	pods := func(ctx context.Context, namespace string) string {
		o := &corev1.ResourceQuota{}
		if err := m.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: set.QuotaName}, o); err != nil {
			return err.Error()
		}
		amount := o.Spec.Hard["pods"]
		return amount.String()
	}
	want := func(t *testing.T, wanted map[string]string) {
		t.Helper()
		testkit.Eventually(t, patience, func(ctx context.Context) error {
			for namespace, amount := range wanted {
				if got := pods(ctx, namespace); got != amount {
					return fmt.Errorf("the quota of %s is %s, want %s", namespace, got, amount)
				}
			}
			return nil
		})
	}
	want(t, map[string]string{"web": "4", "hosted": "4"})
	m.Apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "late",
		Labels: map[string]string{v1.LabelProject: "web"}}})
	want(t, map[string]string{"web": "4", "hosted": "4", "late": "2"})
	testkit.Eventually(t, patience, func(ctx context.Context) error {
		ns := &corev1.Namespace{}
		if err := m.Client.Get(ctx, client.ObjectKey{Name: "late"}, ns); err != nil ||
			ns.Labels["pod-security.kubernetes.io/enforce"] != "baseline" {
			return fmt.Errorf("%v: %w", ns.Labels, err)
		}
		return nil
	})
	project.Spec.NamespaceDefaultResourceQuota = list("pods", "3")
	if state := a.applied(t, made()); state.Namespaces != 3 || len(state.Short) > 0 {
		t.Errorf("got %+v, want 3 namespaces, none of which lacks quota", state)
	}
	want(t, map[string]string{"web": "3", "hosted": "3", "late": "3"})

	testkit.Update(t, m.Client, hosted, func(n *corev1.Namespace) { delete(n.Labels, v1.LabelProject) })
	testkit.Eventually(t, patience, func(ctx context.Context) error {
		ns := &corev1.Namespace{}
		if err := m.Client.Get(ctx, client.ObjectKey{Name: "hosted"}, ns); err != nil ||
			ns.Labels["pod-security.kubernetes.io/enforce"] != "" {
			return fmt.Errorf("%v: %w", ns.Labels, err)
		}
		if got := pods(ctx, "hosted"); !strings.Contains(got, "not found") {
			return fmt.Errorf("the quota is %s, want none", got)
		}
		return nil
	})
	a.remove(t, "project/web")
	for _, name := range []string{"web", "late", "hosted"} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		m.there(t, ns)
		if name == "late" != (ns.Labels[v1.LabelProject] == "web") || ns.Labels["pod-security.kubernetes.io/enforce"] != "" ||
			ns.DeletionTimestamp != nil {
			t.Errorf("%s: got labels %v, want none of ours, except for the project on \"late\"", name, ns.Labels)
		}
		m.gone(t, &corev1.ResourceQuota{ObjectMeta: namespaced(name, set.QuotaName)})
	}
}

func list(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}
