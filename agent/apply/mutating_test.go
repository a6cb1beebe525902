// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/access"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/tenancy"
	"github.com/drover-dev/drover/test/testkit"
)

// mutate creates a policy that patches objects of a resource whose labels name a set, and waits until the policy
// changes the probe.
func (m *fixture) mutate(t *testing.T, group, resource, patch string, probe client.Object) {
	t.Helper()
	before := m.dryRun(t, probe)
	name := admissionregistrationv1.NamedRuleWithOperations{}
	name.Operations = []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll}
	name.Rule = admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"},
		Resources: []string{resource}}
	meta := metav1.ObjectMeta{Name: "widen-" + resource}
	m.Apply(t, &admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: meta,
		Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			MatchConstraints: &admissionregistrationv1.MatchResources{
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{name},
				ObjectSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: v1.LabelSet,
					Operator: metav1.LabelSelectorOpExists}}},
			},
			Mutations: []admissionregistrationv1.Mutation{{
				PatchType: admissionregistrationv1.PatchTypeJSONPatch,
				JSONPatch: &admissionregistrationv1.JSONPatch{Expression: patch},
			}},
		}})
	m.Apply(t, &admissionregistrationv1.MutatingAdmissionPolicyBinding{ObjectMeta: meta,
		Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: meta.Name}})
	testkit.Eventually(t, patience, func(context.Context) error {
		if m.dryRun(t, probe) == before {
			return fmt.Errorf("the policy for %s has no effect yet", resource)
		}
		return nil
	})
}

// dryRun returns the content that an object would have if it were created.
func (m *fixture) dryRun(t *testing.T, probe client.Object) string {
	t.Helper()
	o := probe.DeepCopyObject().(client.Object)
	if err := m.Client.Create(t.Context(), o, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	o.SetUID("")
	o.SetCreationTimestamp(metav1.Time{})
	o.SetManagedFields(nil)
	return fmt.Sprint(o)
}

func (m *fixture) stopMutating(t *testing.T, resource string) {
	t.Helper()
	for _, o := range []client.Object{&admissionregistrationv1.MutatingAdmissionPolicyBinding{},
		&admissionregistrationv1.MutatingAdmissionPolicy{}} {
		o.SetName("widen-" + resource)
		if err := m.Client.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

func TestChangesByTheMembersAdmissionAreReported(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	a := m.lead(t)
	project := &v1.Project{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1.ProjectSpec{
		Namespaces: []string{"web"}, PodSecurity: v1.PodSecurityBaseline, NetworkIsolation: v1.IsolationProject,
		NamespaceDefaultResourceQuota: list("pods", "4", "limits.cpu", "1500m"),
		ContainerDefaults:             &v1.ContainerDefaults{Limits: list("cpu", "500m", "memory", "1Gi")},
	}}
	content, err := tenancy.Content(project, nil)
	if err != nil {
		t.Fatal(err)
	}
	whole := newSet(t, "project/web", content)
	labels := map[string]string{v1.LabelSet: "probe.x"}
	probe := namespaced("default", "probe")
	probe.Labels = labels
	for _, c := range []struct {
		group, resource, patch string
		probe                  client.Object
		want                   protocol.SetObject
	}{
		{"networking.k8s.io", "networkpolicies",
			`[JSONPatch{op: "add", path: "/spec/ingress/0/from/-", value: ` +
				`Object.spec.ingress.from{namespaceSelector: Object.spec.ingress.from.namespaceSelector{}}}]`,
			&networkingv1.NetworkPolicy{ObjectMeta: probe,
				Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{
					From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}}}}},
			protocol.SetObject{Object: "NetworkPolicy web/drover-project", Message: "(spec.ingress.from)"}},
		{"", "resourcequotas", `[JSONPatch{op: "replace", path: "/spec/hard/pods", value: "1000"}]`,
			&corev1.ResourceQuota{ObjectMeta: probe, Spec: corev1.ResourceQuotaSpec{Hard: list("pods", "1")}},
			protocol.SetObject{Object: "ResourceQuota web/drover-project", Message: "(spec.hard.pods)"}},
		{"", "limitranges", `[JSONPatch{op: "replace", path: "/spec/limits/0/default/cpu", value: "64"}]`,
			&corev1.LimitRange{ObjectMeta: probe,
				Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: "Container", Default: list("cpu", "1")}}}},
			protocol.SetObject{Object: "LimitRange web/drover-project", Message: "(spec.limits.default.cpu)"}},
	} {
		t.Run(c.resource, func(t *testing.T) {
			m.mutate(t, c.group, c.resource, c.patch, c.probe)
			state := a.put(t, whole)
			if state.Phase != protocol.SetConflict || len(state.Objects) != 1 || state.Objects[0].Object != c.want.Object ||
				!strings.Contains(state.Objects[0].Message, c.want.Message) {
				t.Errorf("got the state %+v, want a conflict about %+v", state, c.want)
			}
			m.stopMutating(t, c.resource)
			a.await(t, whole.ID, protocol.SetApplied)
			a.remove(t, whole.ID)
		})
	}
	t.Run("a role that is wider than its template is not bound", func(t *testing.T) {
		const reader, binder = "role/wide", "crtb/wide"
		m.mutate(t, rbacv1.GroupName, "clusterroles", `[JSONPatch{op: "add", path: "/rules/0/verbs/-", value: "*"}]`,
			&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "probe", Labels: labels},
				Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}}})
		a.put(t, newSet(t, reader, objectsOf(reader, role("drover:wide", "get"))))
		a.await(t, reader, protocol.SetConflict)
		a.put(t, newSet(t, binder, objectsOf(binder, binding("drover:crtb:wide", "drover:wide", "alice"))))
		a.await(t, binder, protocol.SetConflict)
		m.gone(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "drover:crtb:wide"}})
		m.stopMutating(t, "clusterroles")
		a.await(t, binder, protocol.SetApplied)
	})
}

// TestDefaultsOfTheAPIServerAreNoConflict applies all kinds of sets in the form in which the hub creates them.
func TestDefaultsOfTheAPIServerAreNoConflict(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	a := m.lead(t)
	guards, err := tenancy.Guards()
	if err != nil {
		t.Fatal(err)
	}
	a.applied(t, newSet(t, set.Guards, guards))
	for i, defaults := range []*v1.ContainerDefaults{
		nil, {Limits: list("cpu", "0.5", "memory", "1024Mi")}, {Requests: list("cpu", "1000m")},
		{Requests: list("cpu", "100m"), Limits: list("memory", "1Gi")},
	} {
		project := &v1.Project{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", i)}, Spec: v1.ProjectSpec{
			Namespaces: []string{fmt.Sprintf("p%d", i)}, PodSecurity: v1.PodSecurityRestricted,
			NetworkIsolation: v1.IsolationProject, ContainerDefaults: defaults,
			ResourceQuota:                 list("limits.cpu", "10000m", "requests.memory", "1024Mi", "count/pods", "1e3"),
			NamespaceDefaultResourceQuota: list("limits.cpu", "1.50"),
		}}
		content, err := tenancy.Content(project, nil)
		if err != nil {
			t.Fatal(err)
		}
		a.applied(t, newSet(t, set.ID(set.Project, project.Name), content))
		copies, _, err := tenancy.Secrets(project, []corev1.Secret{
			{ObjectMeta: metav1.ObjectMeta{Name: "empty"}},
			{ObjectMeta: metav1.ObjectMeta{Name: "full"}, Data: map[string][]byte{"a": []byte("ü\x00"), "b": nil}},
			{ObjectMeta: metav1.ObjectMeta{Name: "pull"}, Type: corev1.SecretTypeDockerConfigJson,
				Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte("{}")}},
		})
		if err != nil {
			t.Fatal(err)
		}
		a.applied(t, newSet(t, set.ID(set.Secrets, project.Name), copies))
	}
	m.bindings(t, a)
}

// bindings applies a role and bindings with each kind of subject.
func (m *fixture) bindings(t *testing.T, a *agent) {
	t.Helper()
	templates := access.Index([]v1.RoleTemplate{
		{ObjectMeta: metav1.ObjectMeta{Name: "none"}, Spec: v1.RoleTemplateSpec{Context: v1.ContextCluster}},
		{ObjectMeta: metav1.ObjectMeta{Name: "some"}, Spec: v1.RoleTemplateSpec{Context: v1.ContextProject,
			Rules: []rbacv1.PolicyRule{
				{APIGroups: []string{"", "apps"}, Resources: []string{"pods"}, ResourceNames: []string{"x"},
					Verbs: []string{"get"}}}}},
	})
	for name := range templates {
		role, err := access.Role(templates, name)
		if err != nil {
			t.Fatal(err)
		}
		o, err := set.Object(role)
		if err != nil {
			t.Fatal(err)
		}
		a.applied(t, newSet(t, set.ID(set.Role, name), objectsOf(set.ID(set.Role, name), o.Object)))
	}
	for i, subject := range []v1.Subject{{Kind: "User", Name: "alice"}, {Kind: "Group", Name: "ops"}} {
		b := &v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("b%d", i)}}
		b.Spec.RoleTemplateName, b.Spec.Subject = "none", subject
		made, err := access.ClusterBinding(templates, b)
		if err != nil {
			t.Fatal(err)
		}
		o, err := set.Object(made)
		if err != nil {
			t.Fatal(err)
		}
		id := set.ID(set.ClusterBinding, b.Name)
		a.applied(t, newSet(t, id, objectsOf(id, o.Object)))
	}
}
