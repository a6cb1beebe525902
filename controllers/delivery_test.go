// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/internal/wiring"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// world is a workspace of a hub with the controllers that deliver sets, and in-memory members.
type world struct {
	*testkit.Env
	t         *testing.T
	workspace string
	other     string // a second workspace; empty if the manager watches all workspaces
	registry  *members.Registry
	manager   ctrl.Manager
	started   time.Time // when the manager claims to have started to accept tunnels
	settings  string    // more of the manager's configuration, as ", key: value"
	// whether the controllers of the hub's CA and of Clusters also run; agents have no keys here, so the controller that
	// revokes them does not run
	clusters bool
	stop     func()
}

// newWorld returns a world with two workspaces on a shared API server.
func newWorld(t *testing.T, env *testkit.Env) *world {
	t.Helper()
	return (&world{Env: env, t: t, workspace: env.Workspace(t), other: env.Workspace(t)}).begin()
}

// newWholeWorld returns a world with its own API server, and any number of workspaces.
func newWholeWorld(t *testing.T) *world {
	t.Helper()
	env := testkit.Start(t)
	return (&world{Env: env, t: t, workspace: env.Workspace(t)}).begin()
}

func (w *world) begin() *world {
	w.t.Helper()
	w.registry, w.started = members.New(logr.Discard(), time.Now), time.Now().Add(-time.Hour)
	w.t.Cleanup(w.registry.Close)
	w.lead()
	return w
}

// lead starts a manager that leads.
func (w *world) lead() {
	w.t.Helper()
	cfg, err := config.Parse(fmt.Appendf(nil, "{apiVersion: config.drover.dev/v1, kind: ManagerConfig, namespace: %s, server: {urls: [\"https://127.0.0.1\"]}%s}", w.workspace, w.settings))
	if err != nil {
		w.t.Fatal(err)
	}
	options, err := cfg.ManagerOptions()
	if err != nil {
		w.t.Fatal(err)
	}
	skip := true
	options.Logger, options.Controller.SkipNameValidation = logr.Discard(), &skip
	if w.other != "" { // the worlds of other tests have managers of their own
		options.Cache.DefaultNamespaces = map[string]cache.Config{w.workspace: {}, w.other: {}}
	}
	mgr, err := ctrl.NewManager(w.Config, options)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := index.Index(w.t.Context(), mgr.GetFieldIndexer()); err != nil {
		w.t.Fatal(err)
	}
	shares := Options{Config: cfg, Members: w.registry, Started: w.started}
	if w.clusters {
		if shares.Trust, err = trust.New(cfg.Server.URLs, nil, time.Now); err != nil {
			w.t.Fatal(err)
		}
	}
	s := newShared(mgr, shares)
	made, err := newWorkspaces(s)
	if err != nil {
		w.t.Fatal(err)
	}
	list := made.controllers()
	if w.clusters {
		list = slices.DeleteFunc(slices.Concat(list, authorities(s), clusters(s, made.deliveries), hosts(s)),
			func(c wiring.Controller) bool { return c.Name == revocation })
	}
	for _, runnable := range made.runnables() {
		if err := mgr.Add(runnable); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := wiring.Add(mgr, list); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	stopped := false
	w.manager = mgr
	w.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	}
	w.t.Cleanup(w.stop)
}

func (w *world) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: w.workspace, Name: name}
}

// member creates a Cluster and connects an agent in memory.
func (w *world) member(name string, labels map[string]string) *testkit.Agent {
	w.t.Helper()
	w.cluster(name, labels)
	return w.connect(name, testkit.NewSets())
}

func (w *world) cluster(name string, labels map[string]string) {
	w.t.Helper()
	object := &v1.Cluster{ObjectMeta: w.meta(name)}
	object.Labels = labels
	w.Apply(w.t, object)
}

func (w *world) connect(name string, sets *testkit.Sets) *testkit.Agent {
	w.t.Helper()
	agent := testkit.ConnectAgentWith(w.t, testkit.HealthyReport(), sets)
	w.registry.Add(members.Peer{Cluster: protocol.ClusterRef{Namespace: w.workspace, Name: name, UID: "u"}, Key: "k"}, agent.Session)
	return agent
}

// role creates a role template with the workspace in its name, because templates have no namespace.
func (w *world) role(name string, spec v1.RoleTemplateSpec) string {
	w.t.Helper()
	name = w.workspace + "-" + name
	if spec.Context == "" {
		spec.Context = v1.ContextCluster
	}
	if spec.External == "" && spec.Inherits == nil && spec.Rules == nil {
		spec.Rules = []rbacv1.PolicyRule{{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"get"}}}
	}
	w.Apply(w.t, &v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec})
	return name
}

func (w *world) crtb(name, role string, change ...func(*v1.ClusterRoleTemplateBinding)) *v1.ClusterRoleTemplateBinding {
	w.t.Helper()
	b := &v1.ClusterRoleTemplateBinding{ObjectMeta: w.meta(name), Spec: v1.ClusterRoleTemplateBindingSpec{
		ClusterTarget: v1.ClusterTarget{ClusterName: "prod"}, RoleTemplateName: role, Subject: v1.Subject{Kind: v1.SubjectUser, Name: "hub:alice"}}}
	for _, f := range change {
		f(b)
	}
	w.Apply(w.t, b)
	return b
}

func (w *world) eventually(check func(context.Context) error) {
	w.t.Helper()
	testkit.Eventually(w.t, 15*time.Second, check)
}

// holds waits until an agent has exactly these sets in addition to the guards.
func (w *world) holds(agent *testkit.Agent, ids ...string) {
	w.t.Helper()
	w.eventually(func(context.Context) error {
		held := slices.DeleteFunc(agent.Sets.Held(), func(id string) bool { return id == "guards" })
		if slices.Sort(ids); !slices.Equal(held, ids) {
			return fmt.Errorf("the member has %v, want %v", held, ids)
		}
		return nil
	})
}

// ready waits until an object has a reason, and returns its conditions.
func (w *world) ready(object client.Object, reason string) []metav1.Condition {
	w.t.Helper()
	var conditions []metav1.Condition
	w.eventually(func(ctx context.Context) error {
		var err error
		if conditions, err = w.conditions(ctx, object); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(conditions, v1.ConditionReady); c == nil || c.Reason != reason || c.ObservedGeneration != object.GetGeneration() {
			return fmt.Errorf("%s is %+v, want %s", object.GetName(), c, reason)
		}
		return nil
	})
	return conditions
}

// conditions reads the conditions of an object from the API server.
func (w *world) conditions(ctx context.Context, object client.Object) ([]metav1.Condition, error) {
	err := w.Client.Get(ctx, client.ObjectKeyFromObject(object), object)
	switch o := object.(type) {
	case *v1.ClusterRoleTemplateBinding:
		return o.Status.Conditions, err
	case *v1.ProjectRoleTemplateBinding:
		return o.Status.Conditions, err
	case *v1.Baseline:
		return o.Status.Conditions, err
	case *v1.Project:
		return o.Status.Conditions, err
	case *v1.RoleTemplate:
		return o.Status.Conditions, err
	}
	return nil, err
}

// says waits until a condition's message has all of the texts.
func (w *world) says(object client.Object, condition string, texts ...string) {
	w.t.Helper()
	w.eventually(func(ctx context.Context) error {
		conditions, err := w.conditions(ctx, object)
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(conditions, condition)
		for _, text := range texts {
			if c == nil || !strings.Contains(c.Message, text) {
				return fmt.Errorf("%s is %+v, want %q", object.GetName(), c, text)
			}
		}
		return nil
	})
}

func (w *world) update(object client.Object, change func()) {
	w.t.Helper()
	w.eventually(func(ctx context.Context) error {
		if err := w.Client.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		change()
		return w.Client.Update(ctx, object)
	})
}

func (w *world) delete(object client.Object) {
	w.t.Helper()
	if err := w.Client.Delete(w.t.Context(), object); err != nil {
		w.t.Fatal(err)
	}
}

func text(t *testing.T, agent *testkit.Agent, id string) string {
	t.Helper()
	set, _ := agent.Sets.Get(id)
	raw, err := json.Marshal(set.Content)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestDelivery(t *testing.T) {
	env := testkit.Shared(t)
	for name, test := range map[string]func(*world){
		"a binding brings role and binding to its member, follows changes, and takes them away": testBinding,
		"a selector follows the labels of Clusters":                                             testSelector,
		"a binding expires": testExpiry,
		"a binding in a project comes with its project's members":                                  testProjectBinding,
		"a project has namespaces and secrets, and follows both":                                   testProject,
		"a broken binding has the reason in its status, and grants nothing":                        testProblems,
		"a manager that takes over removes nothing, sends nothing and writes nothing":              testTakeover,
		"what was deleted while no manager led goes from the member":                               testDeletedMeanwhile,
		"CVE-2021-36775, CVE-2023-32199: a member that was away loses what was taken from it":      testAwayLoses,
		"CVE-2024-22031, CVE-2026-44935: two projects of one name in two workspaces share nothing": testTwoWorkspaces,
		"a principal of the hub sees its Clusters and no others":                                   testHubRights,
		"a Role on the hub that a user made grants them nothing":                                   testForeignRole,
		"a request without an identity sees no Clusters":                                           testAnonymous,
		"CVE-2021-25318, CVE-2023-32194: rules come into the member word for word":                 testWordForWord,
		"CVE-2021-36782, CVE-2021-36783, CVE-2022-43757, CVE-2022-45157, CVE-2023-22649, CVE-2023-32191, CVE-2024-22032, CVE-2024-52284: no secret shows in a status or an annotation": testNoSecretInStatus,
		"a Cluster that is deleted is left alone":                         testClusterGoes,
		"an older project keeps a namespace that a younger one lists too": testTaken,
		"where many namespaces are short of quota, the first are named":   testManyAreShort,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, env)
			w.t = t
			test(w)
		})
	}
}

func testBinding(w *world) {
	agent := w.member("prod", nil)
	role := w.role("owner", v1.RoleTemplateSpec{})
	b := w.crtb("alice", role)
	w.holds(agent, "crtb/alice", "role/"+role)
	w.ready(b, v1.ReasonApplied)
	if b.Status.Clusters.Summary != "1/1" {
		w.t.Errorf("the binding counts %v, want 1/1 clusters", b.Status.Clusters)
	}
	if got := text(w.t, agent, "crtb/alice"); !strings.Contains(got, `"name":"hub:alice"`) || !strings.Contains(got, "drover:cluster:"+role) {
		w.t.Errorf("the set is %v, want alice bound to the template's role", got)
	}
	other := w.role("other", v1.RoleTemplateSpec{External: "view"})
	w.update(b, func() { b.Spec.RoleTemplateName, b.Spec.Subject.Name = other, "github:bob" })
	w.holds(agent, "crtb/alice")
	w.ready(b, v1.ReasonApplied)
	if got := text(w.t, agent, "crtb/alice"); !strings.Contains(got, `"name":"github:bob"`) || !strings.Contains(got, `"name":"view"`) {
		w.t.Errorf("the set is %v, want bob bound to the external role", got)
	}
	w.delete(b)
	w.holds(agent)
}

func testSelector(w *world) {
	prod, edge := w.member("prod", map[string]string{"env": "prod"}), w.member("edge", nil)
	role := w.role("r", v1.RoleTemplateSpec{External: "view"})
	b := w.crtb("all", role, func(b *v1.ClusterRoleTemplateBinding) {
		b.Spec.ClusterTarget = v1.ClusterTarget{ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}}
	})
	w.holds(prod, "crtb/all")
	w.holds(edge)
	cluster := &v1.Cluster{ObjectMeta: w.meta("edge")}
	w.update(cluster, func() { cluster.Labels = map[string]string{"env": "prod"} })
	w.holds(edge, "crtb/all")
	cluster = &v1.Cluster{ObjectMeta: w.meta("prod")}
	w.update(cluster, func() { cluster.Labels = nil })
	w.holds(prod)
	w.ready(b, v1.ReasonApplied)
}

func testExpiry(w *world) {
	agent := w.member("prod", nil)
	role := w.role("r", v1.RoleTemplateSpec{})
	later := metav1.NewTime(time.Now().Add(time.Hour).Truncate(time.Second))
	b := w.crtb("short", role, func(b *v1.ClusterRoleTemplateBinding) { b.Spec.ExpiresAt = &later })
	w.holds(agent, "crtb/short", "role/"+role)
	if set, _ := agent.Sets.Get("crtb/short"); set.ExpiresAt == nil || !set.ExpiresAt.Equal(later.Time) {
		w.t.Errorf("the set expires at %v, want the binding's time, %v", set.ExpiresAt, later)
	}
	end := metav1.NewTime(time.Now().Add(2500 * time.Millisecond).Truncate(time.Second))
	w.update(b, func() { b.Spec.ExpiresAt = &end })
	w.ready(b, v1.ReasonExpired)
	w.says(b, v1.ConditionReady, "It expired at "+end.UTC().Format(time.RFC3339), "set a later expiresAt")
	w.holds(agent)
	w.update(b, func() { b.Spec.ExpiresAt = &later })
	w.holds(agent, "crtb/short", "role/"+role)
}

func testProjectBinding(w *world) {
	prod, edge := w.member("prod", nil), w.member("edge", nil)
	role := w.role("dev", v1.RoleTemplateSpec{Context: v1.ContextProject})
	b := &v1.ProjectRoleTemplateBinding{ObjectMeta: w.meta("devs"), Spec: v1.ProjectRoleTemplateBindingSpec{
		ProjectName: "web", RoleTemplateName: role, Subject: v1.Subject{Kind: v1.SubjectGroup, Name: "github:acme/web"}}}
	w.Apply(w.t, b)
	w.ready(b, v1.ReasonProjectNotFound)
	project := &v1.Project{ObjectMeta: w.meta("web"), Spec: v1.ProjectSpec{ClusterTarget: v1.ClusterTarget{ClusterName: "prod"}}}
	w.Apply(w.t, project)
	w.holds(prod, "project/web", "prtb/devs", "role/"+role)
	w.ready(b, v1.ReasonApplied)
	w.update(project, func() { project.Spec.ClusterName = "edge" })
	w.holds(prod)
	w.holds(edge, "project/web", "prtb/devs", "role/"+role)
	w.delete(project)
	w.holds(edge)
	w.ready(b, v1.ReasonProjectNotFound)
}

func (w *world) secret(name, project, data string) *corev1.Secret {
	w.t.Helper()
	s := &corev1.Secret{ObjectMeta: w.meta(name), StringData: map[string]string{"password": data}}
	s.Labels = map[string]string{v1.LabelProject: project}
	w.Apply(w.t, s)
	return s
}

func testProject(w *world) {
	agent := w.member("prod", nil)
	project := &v1.Project{ObjectMeta: w.meta("web"), Spec: v1.ProjectSpec{ClusterTarget: v1.ClusterTarget{ClusterName: "prod"}, Namespaces: []string{"web"}}}
	w.Apply(w.t, project)
	w.holds(agent, "project/web")
	secret := w.secret("registry", "web", "first")
	w.holds(agent, "project/web", "secrets/web")
	w.update(secret, func() { secret.Data["password"] = []byte("second") })
	w.eventually(func(context.Context) error {
		if got := text(w.t, agent, "secrets/web"); !strings.Contains(got, "c2Vjb25k") {
			return fmt.Errorf("the member has %s", got)
		}
		return nil
	})
	w.update(secret, func() { delete(secret.Labels, v1.LabelProject) })
	w.holds(agent, "project/web")
	w.ready(project, v1.ReasonApplied)
	token := w.secret("token", "web", "x")
	w.delete(token)
	agent.Sets.SetState(protocol.SetState{ID: "project/web", Digest: digest(agent, "project/web"), Phase: protocol.SetApplied, Namespaces: 2, Short: []string{"web-b"}})
	w.update(project, func() {
		project.Spec.NamespaceDefaultResourceQuota = corev1.ResourceList{}
		project.Spec.NetworkIsolation = v1.IsolationProject
	})
	w.eventually(func(context.Context) error {
		if got := text(w.t, agent, "project/web"); !strings.Contains(got, "NetworkPolicy") {
			return fmt.Errorf("the member has %s", got)
		}
		return nil
	})
	w.delete(project)
	w.holds(agent)
}

func digest(agent *testkit.Agent, id string) string {
	set, _ := agent.Sets.Get(id)
	return set.Digest
}

func testProblems(w *world) {
	agent := w.member("prod", nil)
	projectRole := w.role("p", v1.RoleTemplateSpec{Context: v1.ContextProject})
	// The API server cannot detect a cycle. A template that inherits from a cycle grants nothing, and the message
	// contains the path.
	loop := w.role("loop", v1.RoleTemplateSpec{Inherits: []string{w.workspace + "-back"}})
	back := w.role("back", v1.RoleTemplateSpec{Inherits: []string{loop}})
	into := w.role("into", v1.RoleTemplateSpec{Inherits: []string{loop}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}}})
	led := w.crtb("led", into)
	for reason, b := range map[string]*v1.ClusterRoleTemplateBinding{
		v1.ReasonRoleTemplateNotFound: w.crtb("norole", "no-such-role"),
		v1.ReasonContextMismatch:      w.crtb("context", projectRole),
		v1.ReasonInheritanceCycle:     w.crtb("cycle", loop),
		v1.ReasonClusterNotFound: w.crtb("nocluster", w.role("fine", v1.RoleTemplateSpec{}), func(b *v1.ClusterRoleTemplateBinding) {
			b.Spec.ClusterName = "elsewhere"
		}),
	} {
		w.ready(b, reason)
	}
	w.ready(led, v1.ReasonInheritanceCycle)
	for _, name := range []string{loop, back, into} {
		w.ready(&v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}}, v1.ReasonInheritanceCycle)
	}
	w.eventually(func(ctx context.Context) error {
		if err := w.Client.Get(ctx, client.ObjectKeyFromObject(led), led); err != nil {
			return fmt.Errorf("read binding: %w", err)
		}
		if ready := meta.FindStatusCondition(led.Status.Conditions, v1.ConditionReady); !strings.Contains(ready.Message, loop+" → "+back+" → "+loop) {
			return fmt.Errorf("the message is %q", ready.Message)
		}
		return nil
	})
	w.holds(agent)
	// The same binding is in force as soon as its role is.
	role := &v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: loop}}
	w.update(role, func() {
		role.Spec.Inherits, role.Spec.Rules = nil, []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}}
	})
	w.holds(agent, "crtb/cycle", "crtb/led", "role/"+loop, "role/"+into)
	w.update(role, func() { role.Spec.Inherits = []string{back} })
	w.holds(agent)
}

func testTakeover(w *world) {
	agent := w.member("prod", nil)
	role := w.role("r", v1.RoleTemplateSpec{})
	b := w.crtb("alice", role)
	w.Apply(w.t, &v1.Project{ObjectMeta: w.meta("web"), Spec: v1.ProjectSpec{ClusterTarget: v1.ClusterTarget{ClusterName: "prod"}, Namespaces: []string{"web"}}})
	w.secret("registry", "web", "x")
	w.holds(agent, "crtb/alice", "role/"+role, "project/web", "secrets/web")
	w.ready(b, v1.ReasonApplied)
	template := &v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: role}}
	w.ready(template, v1.ReasonApplied)
	w.ready(&v1.Project{ObjectMeta: w.meta("web")}, v1.ReasonApplied)
	w.stop()
	calls := len(agent.Sets.Calls())
	w.lead()
	marker := w.crtb("marker", role) // when it exists, everything before it has been reconciled
	w.ready(marker, v1.ReasonApplied)
	if got := agent.Sets.Calls()[calls:]; !reflect.DeepEqual(got, []string{"PUT crtb/marker"}) {
		w.t.Errorf("the member was sent %v", got)
	}
	version, generation := b.ResourceVersion, template.Generation
	w.ready(b, v1.ReasonApplied)
	if b.ResourceVersion != version || template.Generation != generation {
		w.t.Error("the binding was written")
	}
}

func testDeletedMeanwhile(w *world) {
	agent := w.member("prod", nil)
	role := w.role("r", v1.RoleTemplateSpec{})
	b := w.crtb("alice", role)
	w.holds(agent, "crtb/alice", "role/"+role)
	w.stop()
	w.delete(b)
	w.lead()
	w.holds(agent)
}

func testAwayLoses(w *world) {
	agent := w.member("prod", nil)
	role := w.role("r", v1.RoleTemplateSpec{})
	b := w.crtb("alice", role)
	w.holds(agent, "crtb/alice", "role/"+role)
	agent.Kill()
	away := w.crtb("bob", role)
	w.ready(away, v1.ReasonMembersAway)
	w.delete(b)
	agent = w.connect("prod", agent.Sets)
	w.holds(agent, "crtb/bob", "role/"+role)
	w.ready(away, v1.ReasonApplied)
}

func testTwoWorkspaces(w *world) {
	here := w.member("prod", nil)
	there := &world{Env: w.Env, t: w.t, workspace: w.other, registry: w.registry}
	elsewhere := there.member("prod", nil)
	role := w.role("dev", v1.RoleTemplateSpec{Context: v1.ContextProject})
	for _, side := range []*world{w, there} {
		side.Apply(w.t, &v1.Project{ObjectMeta: side.meta("web"), Spec: v1.ProjectSpec{ClusterTarget: v1.ClusterTarget{ClusterName: "prod"}}})
	}
	w.secret("registry", "web", "mine")
	w.Apply(w.t, &v1.ProjectRoleTemplateBinding{ObjectMeta: w.meta("devs"), Spec: v1.ProjectRoleTemplateBindingSpec{
		ProjectName: "web", RoleTemplateName: role, Subject: v1.Subject{Kind: v1.SubjectUser, Name: "github:alice"}}})
	w.holds(here, "project/web", "prtb/devs", "role/"+role, "secrets/web")
	there.holds(elsewhere, "project/web")
}

func testHubRights(w *world) {
	w.member("prod", nil)
	w.member("edge", nil)
	b := w.crtb("alice", w.role("r", v1.RoleTemplateSpec{External: "view"}))
	w.ready(b, v1.ReasonApplied)
	w.AwaitRights(w.t, "alice", w.workspace, rbacv1.PolicyRule{APIGroups: []string{v1.Group}, Resources: []string{"clusters"}, ResourceNames: []string{"prod"}, Verbs: []string{"get"}})
	role := &rbacv1.Role{}
	if err := w.Client.Get(w.t.Context(), types.NamespacedName{Namespace: w.workspace, Name: "drover:crtb:alice"}, role); err != nil {
		w.t.Fatal(err)
	}
	want := []rbacv1.PolicyRule{{APIGroups: []string{v1.Group}, Resources: []string{"clusters"}, ResourceNames: []string{"prod"}, Verbs: []string{"get", "list", "watch"}}}
	if !reflect.DeepEqual(role.Rules, want) || !metav1.IsControlledBy(role, b) {
		w.t.Errorf("the Role is %+v, want the binding's rules, and the binding as owner", role)
	}
	w.delete(role)
	w.eventually(func(ctx context.Context) error { return w.Client.Get(ctx, client.ObjectKeyFromObject(role), role) })
	past := metav1.NewTime(time.Now().Add(-time.Minute))
	w.update(b, func() { b.Spec.ExpiresAt = &past })
	w.eventually(func(ctx context.Context) error {
		if err := w.Client.Get(ctx, client.ObjectKeyFromObject(role), role); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the role of an expired binding is there: %w", err)
		}
		return nil
	})
}

// A user who can create Roles and RoleBindings, but not see Clusters, could create the Role of a future binding and
// bind it to themselves.
func testForeignRole(w *world) {
	w.member("prod", nil)
	foreign := &rbacv1.Role{ObjectMeta: w.meta("drover:crtb:alice")}
	foreign.Labels = map[string]string{v1.LabelManagedBy: v1.ManagedBy}
	w.Apply(w.t, foreign)
	b := w.crtb("alice", w.role("r", v1.RoleTemplateSpec{External: "view"}))
	w.ready(b, v1.ReasonApplied) // in the member
	past := metav1.NewTime(time.Now().Add(-time.Minute))
	w.update(b, func() { b.Spec.ExpiresAt = &past })
	w.ready(b, v1.ReasonExpired)
	now := &rbacv1.Role{}
	if err := w.Client.Get(w.t.Context(), client.ObjectKeyFromObject(foreign), now); err != nil || now.ResourceVersion != foreign.ResourceVersion {
		w.t.Errorf("changed or removed: %+v %v", now, err)
	}
}

func testAnonymous(w *world) {
	w.member("prod", nil)
	role := w.role("r", v1.RoleTemplateSpec{External: "view"})
	for kind, name := range map[v1.SubjectKind]string{v1.SubjectUser: "hub:system:anonymous", v1.SubjectGroup: "hub:system:unauthenticated"} {
		b := w.crtb(strings.ToLower(string(kind)), role, func(b *v1.ClusterRoleTemplateBinding) { b.Spec.Subject = v1.Subject{Kind: kind, Name: name} })
		w.ready(b, v1.ReasonApplied)
		err := w.Client.Get(w.t.Context(), types.NamespacedName{Namespace: w.workspace, Name: "drover:crtb:" + b.Name}, &rbacv1.RoleBinding{})
		if !apierrors.IsNotFound(err) {
			w.t.Errorf("%s: %v, want that it is not found", name, err)
		}
	}
}

func testWordForWord(w *world) {
	agent := w.member("prod", nil)
	rules := []rbacv1.PolicyRule{
		{APIGroups: []string{"apps.catalog.example.com"}, Resources: []string{"namespaces"}, Verbs: []string{"create"}},
		{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"one"}, Verbs: []string{"get"}},
	}
	role := w.role("r", v1.RoleTemplateSpec{Rules: rules})
	w.crtb("alice", role)
	w.holds(agent, "crtb/alice", "role/"+role)
	set, _ := agent.Sets.Get("role/" + role)
	raw, err := json.Marshal(set.Content.Objects[0].Object["rules"])
	if err != nil {
		w.t.Fatal(err)
	}
	var got []rbacv1.PolicyRule
	if err := json.Unmarshal(raw, &got); err != nil || !reflect.DeepEqual(got, rules) {
		w.t.Errorf("the rules of the set are %v, %v, want those of the template", string(raw), err)
	}
}

func testNoSecretInStatus(w *world) {
	agent := w.member("prod", nil)
	agent.Sets.Become(func(content set.Content) protocol.SetState {
		if len(content.Objects) > 0 && content.Objects[0].GetKind() == "ValidatingAdmissionPolicy" { // without the guards no Secret is sent
			return protocol.SetState{Phase: protocol.SetApplied}
		}
		return protocol.SetState{Phase: protocol.SetFailed, Objects: []protocol.SetObject{{Object: "Secret web/registry", Phase: protocol.SetFailed, Message: "refused"}}, Failed: 1}
	})
	project := &v1.Project{ObjectMeta: w.meta("web"), Spec: v1.ProjectSpec{ClusterTarget: v1.ClusterTarget{ClusterName: "prod"}, Namespaces: []string{"web"}}}
	w.Apply(w.t, project)
	w.secret("registry", "web", "hunter2")
	w.holds(agent, "project/web", "secrets/web")
	w.ready(project, v1.ReasonDeliveryFailed)
	w.showsNo("hunter2", &v1.ProjectList{}, &v1.ClusterList{}, &corev1.EventList{}, &corev1.ConfigMapList{})
}

// showsNo checks that a secret appears in none of the objects of some kinds.
func (w *world) showsNo(secret string, lists ...client.ObjectList) {
	w.t.Helper()
	for _, list := range lists {
		if err := w.Client.List(w.t.Context(), list); err != nil {
			w.t.Fatal(err)
		}
		raw, err := json.Marshal(list)
		if err != nil {
			w.t.Fatal(err)
		}
		if strings.Contains(string(raw), secret) || strings.Contains(string(raw), base64.StdEncoding.EncodeToString([]byte(secret))) {
			w.t.Errorf("a secret is in %T", list)
		}
	}
}

func testClusterGoes(w *world) {
	agent := w.member("prod", nil)
	b := w.crtb("alice", w.role("r", v1.RoleTemplateSpec{External: "view"}))
	w.holds(agent, "crtb/alice")
	cluster := &v1.Cluster{ObjectMeta: w.meta("prod")}
	w.delete(cluster)
	w.ready(b, v1.ReasonClusterNotFound)
	for _, call := range agent.Sets.Calls() {
		if strings.HasPrefix(call, "DELETE") {
			w.t.Errorf("the agent was asked %v, want no DELETE", agent.Sets.Calls())
		}
	}
}

func testManyAreShort(w *world) {
	agent := w.member("prod", nil)
	one := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}
	p := &v1.Project{ObjectMeta: w.meta("web"), Spec: v1.ProjectSpec{ClusterTarget: v1.ClusterTarget{ClusterName: "prod"}, ResourceQuota: one, NamespaceDefaultResourceQuota: one}}
	agent.Sets.Become(func(set.Content) protocol.SetState {
		return protocol.SetState{Phase: protocol.SetApplied, Namespaces: 20, Short: strings.Fields("a b c d e f g h i j")}
	})
	w.Apply(w.t, p)
	w.ready(p, v1.ReasonApplied)
	w.says(p, v1.ConditionQuotaFits, "prod/a, prod/b", "prod/j and perhaps more")
}

func testTaken(w *world) {
	agent := w.member("prod", nil)
	target := v1.ClusterTarget{ClusterName: "prod"}
	older := &v1.Project{ObjectMeta: w.meta("b-older"), Spec: v1.ProjectSpec{ClusterTarget: target, Namespaces: []string{"shared"}}}
	w.Apply(w.t, older)
	w.ready(older, v1.ReasonApplied)
	younger := &v1.Project{ObjectMeta: w.meta("z-younger"), Spec: v1.ProjectSpec{ClusterTarget: target, Namespaces: []string{"own", "shared"}}}
	w.Apply(w.t, younger)
	w.ready(younger, v1.ReasonNamespaceTaken)
	token := &corev1.Secret{ObjectMeta: w.meta("bootstrap"), Type: corev1.SecretTypeBootstrapToken}
	token.Labels = map[string]string{v1.LabelProject: younger.Name}
	w.Apply(w.t, token)
	w.says(younger, v1.ConditionReady, "namespace shared belongs to project b-older", "Secret bootstrap is not copied: a bootstrap token")
	if got := text(w.t, agent, "project/z-younger"); strings.Contains(got, `"shared"`) {
		w.t.Errorf("the set of the younger project is %v, want it without the namespace of the older one", got)
	}
	w.delete(older)
	w.ready(younger, v1.ReasonSecretRefused)
	w.delete(token)
	w.ready(younger, v1.ReasonApplied)
	large := &corev1.Secret{ObjectMeta: w.meta("large"), Data: map[string][]byte{"key": []byte(strings.Repeat("a", 300<<10))}}
	large.Labels = map[string]string{v1.LabelProject: younger.Name}
	w.Apply(w.t, large)
	w.says(younger, v1.ConditionReady, "Secret large is not copied: it has 300 KiB", "at most 256 KiB")
	w.delete(large)
	w.ready(younger, v1.ReasonApplied)
	if got := text(w.t, agent, "project/z-younger"); !strings.Contains(got, `"shared"`) {
		w.t.Errorf("the set of the younger project is %v, want it with the namespace that is free now", got)
	}
}
