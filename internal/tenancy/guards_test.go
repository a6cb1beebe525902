// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tenancy_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/internal/baseline"
	"github.com/drover-dev/drover/internal/tenancy"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// fixture is an API server with the guards. Other tests share it.
type fixture struct {
	*testkit.Env
	t      *testing.T
	prefix string // prefix of the names of this test's users and namespaces
}

// unique returns a name that no other test has.
func (m fixture) unique(name string) string { return m.prefix + "-" + name }

func guarded(t *testing.T) fixture {
	t.Helper()
	env := testkit.Shared(t)
	m := fixture{env, t, env.Workspace(t)}
	c, err := tenancy.Guards()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range c.Objects {
		if err := m.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o.DeepCopy()),
			client.FieldOwner("drover")); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// user returns a client that acts as a new user, see as.
func (m fixture) user(name string, more ...rbacv1.PolicyRule) client.Client {
	m.t.Helper()
	return m.as(m.unique(name), more...)
}

// as returns a client that acts as a user with permission to write namespaces and the guarded kinds, and with the given
// verbs on virtual resources.
func (m fixture) as(name string, more ...rbacv1.PolicyRule) client.Client {
	m.t.Helper()
	rules := append(more, rbacv1.PolicyRule{APIGroups: []string{"", "networking.k8s.io"}, Verbs: []string{"*"},
		Resources: []string{"namespaces", "namespaces/status", "namespaces/finalize", "secrets", "resourcequotas",
			"resourcequotas/status", "limitranges", "networkpolicies"}})
	role := metav1.ObjectMeta{Name: m.unique(name)}
	m.Apply(m.t, &rbacv1.ClusterRole{ObjectMeta: role, Rules: rules})
	m.Apply(m.t,
		&rbacv1.ClusterRoleBinding{ObjectMeta: role,
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}}})
	m.AwaitRights(m.t, name, "", rules...)
	config := rest.CopyConfig(m.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: []string{"system:authenticated"}}
	c, err := client.New(config, client.Options{Scheme: m.Client.Scheme(), Mapper: m.Client.RESTMapper()})
	if err != nil {
		m.t.Fatal(err)
	}
	return c
}

func on(resource string, names []string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{"cluster.drover.dev"}, Resources: []string{resource},
		ResourceNames: names, Verbs: verbs}
}

func (m fixture) label(c client.Client, namespace, key, value string) error {
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	return c.Patch(m.t.Context(), object,
		client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"`+key+`":`+value+`}}}`)))
}

func (m fixture) refused(err error, message string) {
	m.t.Helper()
	if err == nil || !strings.Contains(err.Error(), "drover-guard") || !strings.Contains(err.Error(), message) {
		m.t.Errorf("got %v, want a guard's refusal with %q", err, message)
	}
}

func (m fixture) taken(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Error(err)
	}
}

func TestGuards(t *testing.T) {
	m := guarded(t)
	shop, free := m.unique("shop"), m.unique("free")
	stranger := m.user("stranger")
	mover := m.user("mover", on("projects", []string{"web", "db"}, "manage-namespaces"))
	webMover := m.user("web-mover", on("projects", []string{"web"}, "manage-namespaces"))
	security := m.user("security", on("projects", nil, "manage-namespaces", "updatepsa"))
	m.Apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop}})
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "copy",
		Labels: map[string]string{"cluster.drover.dev/set": "secrets.web"}}}
	// The API server takes a moment to notice policies and rights.
	testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		probe := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: m.unique("probe"),
			Labels: map[string]string{"cluster.drover.dev/project": "web"}}}
		for _, err := range []error{stranger.Create(ctx, probe, client.DryRunAll),
			stranger.Create(ctx, secret.DeepCopy(), client.DryRunAll)} {
			if err == nil || !strings.Contains(err.Error(), "drover-guard") {
				return errors.Join(errors.New("not guarded yet"), err)
			}
		}
		return nil
	})
	const project = "cluster.drover.dev/project"
	t.Run("CVE-2020-10676, CVE-2022-46167, CVE-2024-39690, CVE-2025-55205: only a user who manages both projects can move a namespace", func(t *testing.T) {
		m.refused(m.label(stranger, shop, project, `"web"`), "from project '' to project 'web'")
		m.refused(m.label(webMover, shop, project, `"db"`), "manage-namespaces on both")
		m.taken(m.label(webMover, shop, project, `"web"`))
		m.refused(m.label(webMover, shop, project, `"db"`), "from project 'web' to project 'db'")
		m.refused(m.label(stranger, shop, project, "null"), "from project 'web' to project ''")
		m.taken(m.label(mover, shop, project, `"db"`))
		m.taken(m.label(stranger, shop, "team", `"a"`))
	})
	t.Run("CVE-2020-10676, CVE-2026-30963, CVE-2026-55636: a namespace is not moved through its subresources either",
		func(t *testing.T) {
			for _, subresource := range []string{"status", "finalize"} {
				now := &corev1.Namespace{}
				m.taken(m.Client.Get(t.Context(), client.ObjectKey{Name: shop}, now))
				now.Labels[project] = "web"
				m.refused(stranger.SubResource(subresource).Update(t.Context(), now.DeepCopy()),
					"from project 'db' to project 'web'")
				now.Labels[project] = "db"
				m.taken(stranger.SubResource(subresource).Update(t.Context(), now))
			}
		})
	t.Run("only a user who manages a project can create a namespace in it", func(t *testing.T) {
		made := func(labels map[string]string) *corev1.Namespace {
			return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: m.unique("made"), Labels: labels}}
		}
		m.refused(stranger.Create(t.Context(), made(map[string]string{project: "web"}), client.DryRunAll),
			"manage-namespaces")
		m.taken(mover.Create(t.Context(), made(map[string]string{project: "web"}), client.DryRunAll))
		m.taken(stranger.Create(t.Context(), made(nil), client.DryRunAll))
	})
	t.Run("CVE-2026-41052: pod security of a project's namespace takes updatepsa, at creation and when it joins too",
		func(t *testing.T) {
			const enforce = "pod-security.kubernetes.io/enforce"
			m.refused(m.label(mover, shop, enforce, `"privileged"`), "updatepsa")
			m.taken(m.label(security, shop, enforce, `"baseline"`))
			m.refused(m.label(mover, shop, enforce, "null"), "updatepsa")
			made := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: m.unique("made"),
				Labels: map[string]string{project: "web", enforce: "privileged"}}}
			m.refused(mover.Create(t.Context(), made, client.DryRunAll), "updatepsa")
			unguarded := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: free,
				Labels: map[string]string{enforce: "privileged"}}}
			m.taken(stranger.Create(t.Context(), unguarded))
			m.refused(m.label(mover, free, project, `"web"`), "updatepsa")
			m.taken(m.label(security, free, project, `"web"`))
			m.refused(m.label(mover, free, project, `"db"`), "updatepsa")
			m.taken(m.label(mover, free, project, "null"))
		})
	t.Run("the user of a Baseline is guarded like any other user", func(t *testing.T) {
		user := m.as(baseline.User("cni"))
		m.refused(m.label(user, free, project, `"web"`), "manage-namespaces")
		m.refused(user.Create(t.Context(), secret.DeepCopy(), client.DryRunAll), "cannot manage sets")
	})
	t.Run("only a user who manages all projects can open isolated projects", func(t *testing.T) {
		m.refused(m.label(mover, shop, "cluster.drover.dev/ingress", `"true"`), "on all projects")
		m.taken(m.label(security, shop, "cluster.drover.dev/ingress", `"true"`))
	})
	t.Run("only the agent can change, remove or create its objects", func(t *testing.T) {
		agent := m.user("agent", on("sets", nil, "manage"))
		testkit.Eventually(t, 10*time.Second, func(ctx context.Context) error { return agent.Create(ctx, secret.DeepCopy()) })
		current := secret.DeepCopy()
		m.taken(agent.Get(t.Context(), client.ObjectKeyFromObject(secret), current))
		current.StringData = map[string]string{"a": "b"}
		m.refused(stranger.Update(t.Context(), current.DeepCopy()), "cannot manage sets: copy is Drover's")
		unlabelled := current.DeepCopy()
		unlabelled.Labels = nil
		m.refused(stranger.Update(t.Context(), unlabelled), "cannot manage sets")
		m.refused(stranger.Delete(t.Context(), current.DeepCopy()), "cannot manage sets")
		m.refused(stranger.DeleteAllOf(t.Context(), &corev1.Secret{}, client.InNamespace(shop)), "cannot manage sets")
		m.taken(agent.Update(t.Context(), current))
		m.taken(stranger.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "own"}}))
		m.taken(m.as("system:serviceaccount:kube-system:namespace-controller").Delete(t.Context(), current))
	})
}

// annotated returns a quota with a change.
func annotated(quota *corev1.ResourceQuota) *corev1.ResourceQuota {
	changed := quota.DeepCopy()
	changed.Annotations = map[string]string{"a": "b"}
	return changed
}

func TestGuardOfQuotaStatus(t *testing.T) {
	m := guarded(t)
	depot := m.unique("depot")
	m.Apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: depot}})
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: depot, Name: "drover-project",
		Labels: map[string]string{"cluster.drover.dev/set": "project.web"}}}
	m.Apply(t, quota)
	own := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: depot, Name: "own"}}
	m.Apply(t, own)
	stranger, agent := m.user("stranger"), m.user("agent", on("sets", nil, "manage"))
	counter := m.as("system:serviceaccount:kube-system:resourcequota-controller")
	raise := func(c client.Client, quota *corev1.ResourceQuota, labels string) error {
		patch := `{"metadata":{"labels":` + labels + `},"status":{"hard":{"pods":"1000"}}}`
		return c.SubResource("status").Patch(t.Context(), quota.DeepCopy(),
			client.RawPatch("application/merge-patch+json", []byte(patch)), client.FieldOwner("raise"))
	}
	testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		if err := stranger.Update(ctx, annotated(quota), client.DryRunAll); err == nil ||
			!strings.Contains(err.Error(), "drover-guard") {
			return errors.Join(errors.New("not guarded yet"), err)
		}
		return nil
	})
	m.refused(raise(stranger, quota, "null"), "cannot manage sets: drover-project is Drover's")
	m.refused(raise(stranger, quota, "{}"), "cannot manage sets")
	m.taken(raise(stranger, own, "null"))
	m.taken(raise(counter, quota, "{}"))
	m.taken(raise(agent, quota, "{}"))
	if err := counter.Update(t.Context(), annotated(quota), client.DryRunAll); err == nil {
		t.Error("the quota controller may change more than the status, want a refusal")
	}
}

func TestApplyingTheGuardsAgainChangesNothing(t *testing.T) {
	m := guarded(t)
	c, err := tenancy.Guards()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range c.Objects {
		before := o.DeepCopy()
		if err := m.Client.Get(t.Context(), client.ObjectKeyFromObject(o), before); err != nil {
			t.Fatal(err)
		}
		if err := m.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o),
			client.FieldOwner("drover")); err != nil {
			t.Fatal(err)
		}
		if o.GetResourceVersion() != before.GetResourceVersion() || o.GetLabels()["cluster.drover.dev/set"] != "guards" {
			t.Errorf("%s changed, want it unchanged", o.GetName())
		}
	}
}
