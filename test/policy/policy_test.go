// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package policy tests the admission policies of the hub against a real API server, with users who have a right and
// users who do not.
package policy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/testkit"
)

// fixture is an API server with the policies and role templates of config/, and two workspaces.
type fixture struct {
	*testkit.Env
	workspace, other string
}

func startHub(t *testing.T) *fixture {
	t.Helper()
	return newHub(t, testkit.Start(t))
}

func newHub(t *testing.T, env *testkit.Env) *fixture {
	t.Helper()
	h := &fixture{Env: env}
	h.workspace, h.other = h.Workspace(t), h.Workspace(t)
	for _, folder := range []string{"config/policy", "config/roles", "config/roles/templates"} {
		for _, o := range manifests(t, folder) {
			h.Apply(t, o)
		}
	}
	h.deployManager(t)
	h.deployProvisioner(t, "config/provision")
	h.bindProvisioner(t, h.workspace)
	return h
}

// manifests are the objects of a folder.
func manifests(t *testing.T, folder string) []*unstructured.Unstructured {
	t.Helper()
	files, err := filepath.Glob(testkit.Path(t, folder+"/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("find manifests: %v, %v", files, err)
	}
	var objects []*unstructured.Unstructured
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range bytes.Split(text, []byte("\n---\n")) {
			o := &unstructured.Unstructured{}
			if err := yaml.Unmarshal(document, &o.Object); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if o.Object != nil && o.GetKind() != "Kustomization" {
				objects = append(objects, o)
			}
		}
	}
	return objects
}

// as returns a client that acts as the user.
func (h *fixture) as(t *testing.T, user string) client.Client {
	t.Helper()
	config := rest.CopyConfig(h.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	c, err := client.New(config, client.Options{Scheme: h.Client.Scheme(), Mapper: h.Client.RESTMapper()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// allow grants the user rights in a namespace, or in the whole hub if the namespace is "".
func (h *fixture) allow(t *testing.T, user, namespace string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	name := fmt.Sprintf("%s-%s", user, namespace)
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}
	h.Apply(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules})
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}
	if namespace == "" {
		h.Apply(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: ref, Subjects: subjects})
	} else {
		h.Apply(t, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, RoleRef: ref, Subjects: subjects})
	}
	h.AwaitRights(t, user, namespace, rules...)
}

func may(resource string, verbs ...string) rbacv1.PolicyRule {
	group := "cluster.drover.dev"
	if resource == "secrets" {
		group = ""
	}
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if o.GetAPIVersion() == "" {
		o.SetAPIVersion("cluster.drover.dev/v1")
	}
	return o
}

// wantRefused checks that the error comes from the policy. An error from RBAC has a different text.
func wantRefused(t *testing.T, err error, message string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") || !strings.Contains(err.Error(), message) {
		t.Errorf("got %v, want a policy's error with %q", err, message)
	}
}

func wantTaken(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// The API server enforces a policy a moment after it is created. The tests begin when all policies are enforced.
func (h *fixture) awaitPolicies(t *testing.T) {
	t.Helper()
	h.allow(t, "probe", h.workspace, may("*", "create", "update", "get", "patch"), may("secrets", "create", "update", "patch"))
	h.allow(t, "probe", "", may("roletemplates", "create"))
	h.Apply(t, object(t, "{kind: RoleTemplate, metadata: {name: probe}, spec: {context: Cluster, inherits: [a]}}"))
	h.Apply(t, object(t, fmt.Sprintf("{kind: Cluster, metadata: {name: probe, namespace: %s}}", h.workspace)))
	h.Apply(t, object(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: probe, namespace: %s}}", h.workspace)))
	probe := h.as(t, "probe")
	in := func(format string) *unstructured.Unstructured {
		return object(t, strings.ReplaceAll(format, "WS", h.workspace))
	}
	binding := "{kind: ClusterRoleTemplateBinding, metadata: {name: probe, namespace: WS}, spec: {clusterName: a, roleTemplateName: probe, subject: {kind: User, name: a}}}"
	tries := map[string]func(context.Context) error{
		"drover-role-template": func(ctx context.Context) error {
			return probe.Create(ctx, in("{kind: RoleTemplate, metadata: {name: x}, spec: {context: Cluster, inherits: [a]}}"), client.DryRunAll)
		},
		"drover-role-binding": func(ctx context.Context) error { return probe.Create(ctx, in(binding), client.DryRunAll) },
		"drover-role-bindable": func(ctx context.Context) error {
			return h.Client.Create(ctx, in("{kind: ProjectRoleTemplateBinding, metadata: {name: probe, namespace: WS}, "+
				"spec: {projectName: a, roleTemplateName: probe, subject: {kind: User, name: a}}}"), client.DryRunAll)
		},
		"drover-project": func(ctx context.Context) error {
			return probe.Create(ctx, in("{kind: Project, metadata: {name: x, namespace: WS}, spec: {clusterName: a, podSecurity: baseline}}"), client.DryRunAll)
		},
		"drover-project-secret": func(ctx context.Context) error {
			return probe.Patch(ctx, in("{apiVersion: v1, kind: Secret, metadata: {name: probe, namespace: WS}}"),
				client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"cluster.drover.dev/project":"x"}}}`)), client.DryRunAll)
		},
		"drover-cluster-facts": func(ctx context.Context) error {
			return h.as(t, "probe-facts").Create(ctx, in("{kind: Cluster, metadata: {name: x, namespace: WS, labels: {cluster.drover.dev/version: x}}}"), client.DryRunAll)
		},
	}
	tries["drover-plan"] = func(ctx context.Context) error {
		return probe.Create(ctx, in("{kind: Plan, metadata: {name: x, namespace: WS}, spec: {clusterName: a, version: v1, upgrade: {image: a}}}"), client.DryRunAll)
	}
	tries["drover-plan-approval"] = func(ctx context.Context) error {
		return h.Client.Create(ctx, gatedPlan(t, h.workspace, "x", approvalBy("another", "prod")), client.DryRunAll)
	}
	tries["drover-plan-override"] = func(ctx context.Context) error {
		plan := withOverrides(t, gatedPlan(t, h.workspace, "x"), overrideBy("another", "NodesReady"))
		return h.Client.Create(ctx, plan, client.DryRunAll)
	}
	tries["drover-plan-target"] = func(ctx context.Context) error {
		return probe.Create(ctx, in("{kind: Plan, metadata: {name: x, namespace: WS}, spec: {version: v1, upgrade: {image: a}}}"), client.DryRunAll)
	}
	tries["drover-plan-secret"] = func(ctx context.Context) error {
		return probe.Patch(ctx, in("{apiVersion: v1, kind: Secret, metadata: {name: probe, namespace: WS}}"),
			client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"plans.cluster.drover.dev/use":"true"}}}`)), client.DryRunAll)
	}
	tries["drover-plan-claims"] = func(ctx context.Context) error {
		return h.as(t, "probe-facts").Patch(ctx, in("{kind: Cluster, metadata: {name: probe, namespace: WS}}"),
			client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"plan.cluster.drover.dev/x":"x"}}}`)), client.DryRunAll)
	}
	tries["drover-baseline-manifests"] = func(ctx context.Context) error {
		return h.Client.Create(ctx, baselineOf(t, h.workspace, "probe", "Secret"), client.DryRunAll)
	}
	tries["drover-baseline-source-secret"] = func(ctx context.Context) error {
		o := in("{apiVersion: v1, kind: Secret, metadata: {name: x, namespace: WS, labels: " +
			"{baselines.cluster.drover.dev/use: 'true'}}}")
		return h.as(t, "probe-facts").Create(ctx, o, client.DryRunAll)
	}
	tries["drover-baseline-revision"] = func(ctx context.Context) error {
		o := in("{apiVersion: v1, kind: Secret, metadata: {name: x, namespace: WS, labels: " +
			"{cluster.drover.dev/secret: baseline}}}")
		return h.as(t, "probe-facts").Create(ctx, o, client.DryRunAll)
	}
	bare := "{kind: Cluster, metadata: {name: probe, namespace: WS}}"
	tries["drover-cluster-labels"] = func(ctx context.Context) error {
		return h.as(t, "probe-facts").Patch(ctx, in(bare), merge(`{"metadata":{"labels":{"a":"x"}}}`), client.DryRunAll)
	}
	tries["drover-cluster-restored"] = func(ctx context.Context) error {
		return h.as(t, "probe-facts").Patch(ctx, in(bare), merge(`{"metadata":{"annotations":{"cluster.drover.dev/restored":"x"}}}`), client.DryRunAll)
	}
	tries["drover-cluster-metadata"] = func(ctx context.Context) error {
		return h.as(t, "probe-facts").Create(ctx, crowded(t, h.workspace, "x", 65), client.DryRunAll)
	}
	tries["drover-cluster-deletion"] = func(ctx context.Context) error {
		return h.as(t, "probe-facts").Patch(ctx, in(bare), merge(`{"metadata":{"finalizers":["a.b/c"]}}`), client.DryRunAll)
	}
	tries["drover-secrets"] = func(ctx context.Context) error {
		return h.as(t, "probe-facts").Create(ctx, in("{apiVersion: v1, kind: Secret, metadata: {name: x-agent, namespace: WS, labels: {cluster.drover.dev/secret: agent, cluster.drover.dev/cluster: x}}}"), client.DryRunAll)
	}
	tries["drover-cluster-protection"] = func(ctx context.Context) error {
		return h.Client.Delete(ctx, in("{kind: Cluster, metadata: {name: probe-kept, namespace: WS}}"), client.DryRunAll)
	}
	tries["drover-manager-secrets"] = func(ctx context.Context) error {
		return h.manager(t).Create(ctx, in("{apiVersion: v1, kind: Secret, metadata: {name: x, namespace: WS}}"), client.DryRunAll)
	}
	tries["drover-manager-rbac"] = func(ctx context.Context) error {
		return h.manager(t).Create(ctx, in("{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: x, namespace: WS}}"), client.DryRunAll)
	}
	tries["drover-manager-clusters"] = func(ctx context.Context) error {
		return h.manager(t).Patch(ctx, in(bare), merge(`{"spec":{"registration":{"tokenTTL":"1h"}}}`), client.DryRunAll)
	}
	provisioner := h.provisioner(t)
	tries["drover-provisioner-secrets"] = func(ctx context.Context) error {
		o := in("{apiVersion: v1, kind: Secret, metadata: {name: x, namespace: WS}}")
		return provisioner.Create(ctx, o, client.DryRunAll)
	}
	const probeHost = "{kind: Host, metadata: {name: probe, namespace: WS}}"
	h.Apply(t, in(probeHost))
	tries["drover-provisioner-hosts"] = func(ctx context.Context) error {
		return provisioner.Patch(ctx, in(probeHost), merge(`{"metadata":{"labels":{"a":"x"}}}`), client.DryRunAll)
	}
	account := "system:serviceaccount:" + h.workspace + ":probe-drover-provisioner"
	h.allow(t, account, h.workspace, may("clusters", "create"))
	tries["drover-provisioner-clusters"] = func(ctx context.Context) error {
		o := in("{kind: Cluster, metadata: {name: x, namespace: WS}}")
		return h.as(t, account).Create(ctx, o, client.DryRunAll)
	}
	tries["drover-agent"] = func(ctx context.Context) error {
		return h.as(t, "probe-facts").Patch(ctx, in(bare), merge(`{"spec":{"agent":{"image":"x"}}}`), client.DryRunAll)
	}
	session := "{apiVersion: v1, kind: Secret, metadata: {name: drover-session-ffffffffffffffffffffffffffffffff, namespace: drover-system, labels: {cluster.drover.dev/secret: session}}}"
	tries["drover-manager-sessions"] = func(ctx context.Context) error {
		return h.manager(t).Patch(ctx, in(session), merge(`{"data":{"uid":"eA=="}}`), client.DryRunAll)
	}
	h.Apply(t, in(session))
	h.Apply(t, in("{kind: Cluster, metadata: {name: probe-kept, namespace: WS}, spec: {deletionProtection: true}}"))
	h.allow(t, "probe-facts", h.workspace, may("clusters", "create", "patch"), may("secrets", "create"))
	for name, try := range tries {
		testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error {
			err := try(ctx)
			if err == nil {
				return errors.New(name + " is not in force")
			}
			if !strings.Contains(err.Error(), name) {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
}

func TestPolicies(t *testing.T) {
	h := startHub(t)
	h.awaitPolicies(t)
	for name, test := range map[string]func(*testing.T, *fixture){
		"CVE-2023-22651: every policy fails closed and denies":                                   testFormOfPolicies,
		"CVE-2021-36784, CVE-2023-22647: rules of role templates take escalate":                  testEscalate,
		"CVE-2022-31247, CVE-2019-14436: bindings take bind, in their own workspace":             testBind,
		"locked templates and those of another context":                                          testBindable,
		"CVE-2020-10676, CVE-2026-41052: namespaces and pod security of projects":                testProject,
		"what is probably a slip is taken with a warning":                                        testHints,
		"only a user with the rights for all of a project deletes it":                            testProjectDeletion,
		"CVE-2026-44935: only a user who may read a Secret gives it to a project":                testProjectSecret,
		"only the manager writes facts about a Cluster":                                          testClusterFacts,
		"labels of Clusters take a separate right":                                               testClusterLabels,
		"the metadata of a Cluster that every manager keeps is bounded":                          testClusterMetadata,
		"deleting a Cluster takes a separate right":                                              testClusterDeletion,
		"taking the place of an agent takes a separate right":                                    testClusterIdentity,
		"confirming what a restored hub changes takes a separate right":                          testClusterRestored,
		"confirming what a restored hub does on a host takes a separate right":                   testHostRestored,
		"Kubernetes cleans up, under each of its users":                                          testCleanUp,
		"the agent's identity takes a separate right: an editor patches every field":             testAgent,
		"an editor changes nothing that decides rights":                                          testEditor,
		"a manager that was taken over":                                                          testManager,
		"the manager applies the built-in role templates, and writes no others":                  testBuiltInRoles,
		"the manager may escalate exactly the built-in role templates":                           testNamesOfBuiltInRoles,
		"a provisioner that was taken over":                                                      testProvisioner,
		"a member of a project sees its namespaces":                                              testProjectNamespaces,
		"CVE-2022-31247, CVE-2019-14436: plans take run-plans on the clusters that they are for": testPlan,
		"CVE-2021-25320, CVE-2026-44935: only a user who may read a Secret gives it to plans":    testPlanSecret,
		"a Baseline takes bind, and has no Secrets in it":                                        testBaseline,
		"what a Baseline applies takes a separate right":                                         testBaselineSource,
		"approving a wave takes the verb approve and the user's own name":                        testApproval,
		"tools that apply a Plan from Git keep its approvals":                                    testApprovalBesideGitOps,
		"overriding checks takes the verb override, a reason and the user's own name":            testOverride,
		"approving a wave of a Baseline takes the verb approve, and no right to bind":            testBaselineApproval,
		"the stored revisions of a Baseline take that right, too":                                testBaselineRevision,
		"only the manager writes claims of plans":                                                testPlanClaims,
		"making instructions of a host takes a separate right":                                   testHostInstructions,
		"what is done by root on machines takes a separate right":                                testInstallationSecret,
		"a Secret that is found by its name takes a separate right":                              testSecretsByName,
		"a Secret that Cluster API finds takes a separate right":                                 testSecretsOfClusterAPI,
		"the workspace's own roles hold what the policies ask":                                   testWorkspaceRoles,
		"every user sees when a manager was last at work":                                        testLease,
		"the API server has time for the manager":                                                testPriority,
		"the samples are taken":                                                                  testSamples,
	} {
		t.Run(name, func(t *testing.T) { test(t, h) })
	}
	t.Run("importing a cluster of Cluster API takes what making its Cluster takes", func(t *testing.T) { testImport(t, h) })
	t.Run("a provisioner that was taken over, beside Cluster API", func(t *testing.T) { testClusterAPI(t, h) })
	t.Run("keys of clusters of Cluster API, and what its providers write, by their names", func(t *testing.T) { testClusterAPINames(t, h) })
	t.Run("a provisioner makes no plan for a user who may not", func(t *testing.T) { testDeputy(t, h) })
	t.Run("a provisioner that was taken over, which makes snapshots of etcd", func(t *testing.T) {
		testEtcdSnapshots(t, h)
	})
	t.Run("every manifest passes a server-side dry run", func(t *testing.T) { testManifests(t, h) })
}

func testFormOfPolicies(t *testing.T, h *fixture) {
	policies, bindings := map[string]bool{}, map[string]bool{}
	for _, o := range slices.Concat(manifests(t, "config/policy"), manifests(t, "config/provision")) {
		switch o.GetKind() {
		case "ValidatingAdmissionPolicy":
			p := &admissionv1.ValidatingAdmissionPolicy{}
			if err := h.Client.Get(t.Context(), client.ObjectKeyFromObject(o), p); err != nil {
				t.Fatal(err)
			}
			if *p.Spec.FailurePolicy != admissionv1.Fail {
				t.Errorf("%s does not fail closed", p.Name)
			}
			if writtenOften(p) && len(p.Spec.MatchConditions) == 0 {
				t.Errorf("%s has no condition: the API server evaluates it three times for each write, and not once (docs/design/0034-bursts.md)", p.Name)
			}
			policies[p.Name] = true
		case "ValidatingAdmissionPolicyBinding":
			name, _, _ := unstructured.NestedString(o.Object, "spec", "policyName")
			actions, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "validationActions")
			want := "Deny"
			if strings.HasSuffix(name, "-hint") {
				want = "Warn"
			}
			if len(actions) != 1 || actions[0] != want {
				t.Errorf("%s: %v, want one action", name, actions)
			}
			bindings[name] = true
		}
	}
	if len(policies) == 0 || fmt.Sprint(policies) != fmt.Sprint(bindings) {
		t.Errorf("policies %v, bindings %v", policies, bindings)
	}
}

// writtenOften reports whether a policy applies to objects that Drover writes for each member or binding.
func writtenOften(p *admissionv1.ValidatingAdmissionPolicy) bool {
	for _, rule := range p.Spec.MatchConstraints.ResourceRules {
		updated := slices.Contains(rule.Operations, admissionv1.Update)
		for _, resource := range rule.Resources {
			chosen := resource == "secrets" && p.Spec.MatchConstraints.ObjectSelector.Size() > 0 && strings.HasSuffix(p.Name, "-secret") // by the label of a user
			if updated && !chosen && slices.Contains([]string{"clusters", "secrets", "clusterroletemplatebindings", "projectroletemplatebindings"}, resource) {
				return true
			}
		}
	}
	return false
}

func testEscalate(t *testing.T, h *fixture) {
	h.allow(t, "writer", "", may("roletemplates", "get", "create", "update"))
	h.allow(t, "escalator", "", may("roletemplates", "get", "create", "update", "escalate"))
	text := "{kind: RoleTemplate, metadata: {name: pods}, spec: {context: Project, rules: [{apiGroups: [''], resources: [pods], verbs: [get]}]}}"
	writer, escalator := h.as(t, "writer"), h.as(t, "escalator")
	wantRefused(t, writer.Create(t.Context(), object(t, text)), "user writer cannot escalate roletemplates pods")
	template := object(t, text)
	wantTaken(t, escalator.Create(t.Context(), template))
	for name, change := range map[string]string{
		"more verbs":               "{context: Project, rules: [{apiGroups: [''], resources: [pods], verbs: [get, delete]}]}",
		"fewer verbs":              "{context: Project, inherits: [project-viewer]}",
		"a parent":                 "{context: Project, inherits: [project-owner], rules: [{apiGroups: [''], resources: [pods], verbs: [get]}]}",
		"CVE-2023-32196: external": "{context: Project, external: cluster-admin}",
		"another scope":            "{context: Cluster, rules: [{apiGroups: [''], resources: [pods], verbs: [get]}]}",
	} {
		changed := template.DeepCopy()
		changed.Object["spec"] = object(t, "{kind: x, spec: "+change+"}").Object["spec"]
		t.Run(name, func(t *testing.T) {
			wantRefused(t, writer.Update(t.Context(), changed.DeepCopy(), client.DryRunAll), "cannot escalate")
			wantTaken(t, escalator.Update(t.Context(), changed, client.DryRunAll))
		})
	}
	template.SetLabels(map[string]string{"a": "b"})
	wantTaken(t, unstructured.SetNestedField(template.Object, true, "spec", "locked"))
	wantTaken(t, writer.Update(t.Context(), template))
	wantTaken(t, unstructured.SetNestedField(template.Object, false, "spec", "locked"))
	wantRefused(t, writer.Update(t.Context(), template), "cannot escalate")
	wantTaken(t, escalator.Update(t.Context(), template))
}

func binding(t *testing.T, kind, namespace, name, role string) *unstructured.Unstructured {
	t.Helper()
	where := "clusterName: a"
	if kind == "ProjectRoleTemplateBinding" {
		where = "projectName: a"
	}
	return object(t, fmt.Sprintf("{kind: %s, metadata: {namespace: %s, name: %s}, spec: {%s, roleTemplateName: %s, subject: {kind: User, name: bob}}}", kind, namespace, name, where, role))
}

func testBind(t *testing.T, h *fixture) {
	both := may("*", "get", "create", "update")
	h.allow(t, "nobinder", h.workspace, both)
	h.allow(t, "binder", h.workspace, both, rbacv1.PolicyRule{APIGroups: []string{"cluster.drover.dev"}, Resources: []string{"roletemplates"},
		ResourceNames: []string{"cluster-viewer", "project-viewer"}, Verbs: []string{"bind"}})
	h.allow(t, "binder", h.other, both)
	for kind, roles := range map[string][2]string{
		"ClusterRoleTemplateBinding": {"cluster-viewer", "cluster-owner"}, "ProjectRoleTemplateBinding": {"project-viewer", "project-owner"},
	} {
		held, above := roles[0], roles[1]
		nobinder, binder := h.as(t, "nobinder"), h.as(t, "binder")
		wantRefused(t, nobinder.Create(t.Context(), binding(t, kind, h.workspace, "x", held)), "user nobinder cannot bind roletemplates "+held+" in namespace "+h.workspace)
		// More than the user has, or in another workspace.
		wantRefused(t, binder.Create(t.Context(), binding(t, kind, h.workspace, "x", above)), "cannot bind roletemplates "+above)
		wantRefused(t, binder.Create(t.Context(), binding(t, kind, h.other, "x", held)), "in namespace "+h.other)
		wantRefused(t, binder.Create(t.Context(), binding(t, kind, h.workspace, "x", "not-there-yet")), "cannot bind roletemplates not-there-yet")
		b := binding(t, kind, h.workspace, "x", held)
		wantTaken(t, binder.Create(t.Context(), b))
		for _, field := range [][]string{{"spec", "subject", "name"}, {"spec", "expiresAt"}} {
			changed := b.DeepCopy()
			wantTaken(t, unstructured.SetNestedField(changed.Object, "2031-01-01T00:00:00Z", field...))
			wantRefused(t, nobinder.Update(t.Context(), changed, client.DryRunAll), "cannot bind roletemplates "+held)
			wantTaken(t, binder.Update(t.Context(), changed, client.DryRunAll))
		}
		changed := b.DeepCopy()
		wantTaken(t, unstructured.SetNestedField(changed.Object, above, "spec", "roleTemplateName"))
		wantRefused(t, binder.Update(t.Context(), changed, client.DryRunAll), "cannot bind roletemplates "+above)
		b.SetLabels(map[string]string{"a": "b"})
		wantTaken(t, nobinder.Update(t.Context(), b))
	}
}

func testBindable(t *testing.T, h *fixture) {
	h.allow(t, "lockbinder", h.workspace, may("*", "get", "create", "update", "bind"))
	c := h.as(t, "lockbinder")
	wantRefused(t, c.Create(t.Context(), binding(t, "ProjectRoleTemplateBinding", h.workspace, "other", "cluster-viewer")), "bind it with a ClusterRoleTemplateBinding")
	wantRefused(t, c.Create(t.Context(), binding(t, "ClusterRoleTemplateBinding", h.workspace, "other", "project-viewer")), "bind it with a ProjectRoleTemplateBinding")
	template := object(t, "{kind: RoleTemplate, metadata: {name: lockable}, spec: {context: Cluster, inherits: [cluster-viewer]}}")
	h.Apply(t, template)
	before := binding(t, "ClusterRoleTemplateBinding", h.workspace, "before", "lockable")
	wantTaken(t, c.Create(t.Context(), before))
	wantTaken(t, unstructured.SetNestedField(template.Object, true, "spec", "locked"))
	wantTaken(t, h.Client.Update(t.Context(), template))
	testkit.Eventually(t, 10*time.Second, func(ctx context.Context) error {
		err := c.Create(ctx, binding(t, "ClusterRoleTemplateBinding", h.workspace, "after", "lockable"), client.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), "role template lockable is locked and cannot be bound again") {
			return fmt.Errorf("not refused as locked: %w", err)
		}
		return nil
	})
	before.SetLabels(map[string]string{"a": "b"})
	wantTaken(t, c.Update(t.Context(), before))
	wantTaken(t, unstructured.SetNestedField(before.Object, "eve", "spec", "subject", "name"))
	wantRefused(t, c.Update(t.Context(), before), "is locked")
	// A user who could unlock it may bind it, for example to restore a backup.
	wantTaken(t, h.Client.Create(t.Context(), binding(t, "ClusterRoleTemplateBinding", h.workspace, "after", "lockable")))
}

func testProject(t *testing.T, h *fixture) {
	write := may("projects", "get", "create", "update")
	h.allow(t, "planner", h.workspace, write)
	h.allow(t, "mover", h.workspace, write, may("projects", "manage-namespaces"))
	h.allow(t, "guard", h.workspace, write, may("projects", "updatepsa"))
	project := func(name, spec string) *unstructured.Unstructured {
		return object(t, fmt.Sprintf("{kind: Project, metadata: {namespace: %s, name: %s}, spec: %s}", h.workspace, name, spec))
	}
	planner, mover, guard := h.as(t, "planner"), h.as(t, "mover"), h.as(t, "guard")
	wantRefused(t, planner.Create(t.Context(), project("a", "{clusterName: a, namespaces: [monitoring]}")), "user planner cannot manage-namespaces of projects a")
	plain := project("plain", "{clusterName: a}")
	wantRefused(t, planner.Create(t.Context(), plain.DeepCopy()), "cannot manage-namespaces") // namespaces may have its label, and bindings be left of another
	wantTaken(t, mover.Create(t.Context(), plain))
	wantTaken(t, unstructured.SetNestedField(plain.Object, "b", "spec", "clusterName"))
	wantRefused(t, planner.Update(t.Context(), plain.DeepCopy()), "cannot manage-namespaces") // its Secrets and bindings would go there
	wantTaken(t, mover.Update(t.Context(), plain))
	generated := project("", "{clusterName: a, namespaces: [monitoring]}")
	generated.SetGenerateName("a-")
	wantRefused(t, planner.Create(t.Context(), generated.DeepCopy(), client.DryRunAll), "drover-project")
	wantTaken(t, mover.Create(t.Context(), generated, client.DryRunAll))
	held := project("a", "{clusterName: a, namespaces: [web]}")
	wantTaken(t, mover.Create(t.Context(), held))
	change := func(spec string) *unstructured.Unstructured {
		changed := held.DeepCopy()
		changed.Object["spec"] = project("a", spec).Object["spec"]
		return changed
	}
	wantRefused(t, planner.Update(t.Context(), change("{clusterName: a, namespaces: [web, db]}"), client.DryRunAll), "cannot manage-namespaces")
	wantRefused(t, planner.Update(t.Context(), change("{clusterName: a}"), client.DryRunAll), "cannot manage-namespaces")
	wantRefused(t, planner.Update(t.Context(), change("{clusterSelector: {}, namespaces: [web]}"), client.DryRunAll), "cannot manage-namespaces")
	wantTaken(t, planner.Update(t.Context(), change("{clusterName: a, namespaces: [web], networkIsolation: Project}"), client.DryRunAll))
	wantTaken(t, mover.Update(t.Context(), change("{clusterSelector: {}, namespaces: [web, db]}"), client.DryRunAll))
	wantRefused(t, mover.Update(t.Context(), change("{clusterName: a, namespaces: [web], podSecurity: privileged}"), client.DryRunAll), "user mover cannot updatepsa of projects a")
	wantRefused(t, mover.Create(t.Context(), project("b", "{clusterName: a, podSecurity: restricted}")), "cannot updatepsa")
	wantTaken(t, guard.Update(t.Context(), change("{clusterName: a, namespaces: [web], podSecurity: restricted}")))
	current := project("a", "{}")
	wantTaken(t, h.Client.Get(t.Context(), client.ObjectKeyFromObject(current), current))
	unstructured.RemoveNestedField(current.Object, "spec", "podSecurity")
	wantRefused(t, mover.Update(t.Context(), current), "cannot updatepsa")
}

// warnings collects the warnings of the API server.
type warnings struct{ all []string }

func (w *warnings) HandleWarningHeader(_ int, _, text string) { w.all = append(w.all, text) }

func testHints(t *testing.T, h *fixture) {
	said := &warnings{}
	config := rest.CopyConfig(h.Config)
	config.WarningHandler = said
	c, err := client.New(config, client.Options{Scheme: h.Client.Scheme(), Mapper: h.Client.RESTMapper()})
	if err != nil {
		t.Fatal(err)
	}
	template := func(verbs string) *unstructured.Unstructured {
		return object(t, "{kind: RoleTemplate, metadata: {name: hinted}, spec: {context: Project, rules: [{apiGroups: [''], resources: [pods], verbs: ["+verbs+"]}]}}")
	}
	named := func(name string) *unstructured.Unstructured {
		b := binding(t, "ProjectRoleTemplateBinding", h.workspace, "hinted", "project-viewer")
		wantTaken(t, unstructured.SetNestedField(b.Object, name, "spec", "subject", "name"))
		return b
	}
	for name, tc := range map[string]struct {
		object  *unstructured.Unstructured
		warning string // none if empty
	}{
		"a verb that nothing asks for":                {template("get, lst, read"), "does not check these verbs: lst, read"},
		"verbs that there are":                        {template("'*', deletecollection, impersonate"), ""},
		"a name without a prefix":                     {named("alice"), "did you mean hub:alice"},
		"a name with a prefix":                        {named("github:alice"), ""},
		"a project for what agents say of themselves": {object(t, "{kind: Project, metadata: {name: hinted, namespace: "+h.workspace+"}, spec: {clusterSelector: {matchLabels: {cluster.drover.dev/distribution: k3s}}}}"), "come from the agent of a Cluster"},
		"a binding for what agents say of themselves": {object(t, "{kind: ClusterRoleTemplateBinding, metadata: {name: hinted, namespace: "+h.workspace+"}, spec: {roleTemplateName: cluster-viewer, "+
			"subject: {kind: User, name: 'github:alice'}, clusterSelector: {matchExpressions: [{key: cluster.drover.dev/version, operator: Exists}]}}}"), "come from the agent of a Cluster"},
		"a plan with a version and a channel": {object(t, "{kind: Plan, metadata: {name: hinted, namespace: "+h.workspace+"}, spec: {clusterName: prod, version: v1, channel: 'https://example.com/stable', upgrade: {image: a}}}"), "spec.channel has no effect while spec.version is set"},
		"a project for labels of one's own":   {object(t, "{kind: Project, metadata: {name: hinted, namespace: "+h.workspace+"}, spec: {clusterSelector: {matchLabels: {env: prod}}}}"), ""},
		"a project for one Cluster":           {object(t, "{kind: Project, metadata: {name: hinted, namespace: "+h.workspace+"}, spec: {clusterName: prod}}"), ""},
	} {
		said.all = nil
		wantTaken(t, c.Create(t.Context(), tc.object, client.DryRunAll))
		if got := strings.Join(said.all, "; "); tc.warning == "" && got != "" || !strings.Contains(got, tc.warning) {
			t.Errorf("%s: warned %q, want %q", name, got, tc.warning)
		}
	}
}

// testProjectDeletion checks this because a user who deletes and recreates a project could otherwise change it without
// the rights that a change requires.
func testProjectDeletion(t *testing.T, h *fixture) {
	workspace := h.Workspace(t)
	write := may("projects", "get", "create", "update", "delete", "deletecollection")
	h.allow(t, "remover", workspace, write)
	h.allow(t, "emptier", workspace, write, may("projects", "manage-namespaces"))
	h.allow(t, "owner", workspace, write, may("projects", "manage-namespaces", "updatepsa"))
	remover, emptier, owner := h.as(t, "remover"), h.as(t, "emptier"), h.as(t, "owner")
	project := func(name, spec string) *unstructured.Unstructured {
		return object(t, fmt.Sprintf("{kind: Project, metadata: {namespace: %s, name: %s}, spec: %s}", workspace, name, spec))
	}
	plain, strict := project("plain", "{clusterName: a, namespaces: [web]}"), project("strict", "{clusterName: a, podSecurity: restricted}")
	wantTaken(t, owner.Create(t.Context(), plain.DeepCopy()))
	wantTaken(t, owner.Create(t.Context(), strict.DeepCopy()))
	wantRefused(t, remover.Delete(t.Context(), plain), "user remover cannot manage-namespaces of projects plain")
	wantRefused(t, emptier.Delete(t.Context(), strict), "user emptier cannot updatepsa of projects strict")
	list := plain.DeepCopy()
	wantRefused(t, remover.DeleteAllOf(t.Context(), list, client.InNamespace(workspace)), "cannot manage-namespaces")
	wantTaken(t, emptier.Delete(t.Context(), plain, client.DryRunAll))
	wantRefused(t, emptier.DeleteAllOf(t.Context(), list, client.InNamespace(workspace)), "cannot updatepsa of projects strict")
	t.Run("nor is it given to the garbage collector", func(t *testing.T) {
		wantTaken(t, h.Client.Get(t.Context(), client.ObjectKeyFromObject(strict), strict))
		strict.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "none", UID: "0"}})
		wantRefused(t, remover.Update(t.Context(), strict.DeepCopy(), client.DryRunAll), "cannot manage-namespaces")
		wantRefused(t, emptier.Update(t.Context(), strict.DeepCopy(), client.DryRunAll), "cannot updatepsa")
		wantTaken(t, owner.Update(t.Context(), strict.DeepCopy(), client.DryRunAll))
	})
	t.Run("a whole workspace can be deleted", func(t *testing.T) {
		for _, user := range cleaners {
			h.allow(t, user, workspace, write)
			wantTaken(t, h.as(t, user).DeleteAllOf(t.Context(), list, client.InNamespace(workspace), client.DryRunAll))
			wantTaken(t, h.as(t, user).Delete(t.Context(), project("strict", "{}"), client.DryRunAll))
		}
	})
	wantTaken(t, owner.DeleteAllOf(t.Context(), list, client.InNamespace(workspace)))
}

func testProjectSecret(t *testing.T, h *fixture) {
	h.allow(t, "labeller", h.workspace, may("secrets", "patch", "create"))
	h.allow(t, "reader", h.workspace, may("secrets", "patch", "get"))
	secret := object(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: %s, name: mine}}", h.workspace))
	h.Apply(t, secret)
	label := func(c client.Client, project string) error {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"cluster.drover.dev/project":`+project+`}}}`))
		return c.Patch(t.Context(), secret.DeepCopy(), patch)
	}
	labeller, reader := h.as(t, "labeller"), h.as(t, "reader")
	wantRefused(t, label(labeller, `"web"`), "user labeller cannot get secrets mine")
	wantTaken(t, label(reader, `"web"`))
	wantRefused(t, label(labeller, `"db"`), "cannot get secrets mine")
	except := func(c client.Client) error {
		return c.Patch(t.Context(), secret.DeepCopy(), merge(`{"metadata":{"annotations":{"cluster.drover.dev/except-namespaces":"a"}}}`), client.DryRunAll)
	}
	wantRefused(t, except(labeller), "cannot get secrets mine") // a namespace less excepted is a copy more
	wantTaken(t, except(reader))
	wantTaken(t, label(labeller, `null`))
	wantTaken(t, except(labeller))
	own := object(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: %s, name: new, labels: {cluster.drover.dev/project: web}}}", h.workspace))
	wantTaken(t, labeller.Create(t.Context(), own))
}

// testPlan checks the rights for plans, because a user who creates a plan can do anything on nodes. A right that names
// a Cluster allows plans that name this Cluster. A plan with a selector requires the right for all Clusters.
func testPlan(t *testing.T, h *fixture) {
	write := may("plans", "get", "create", "update")
	h.allow(t, "author", h.workspace, write)
	h.allow(t, "runner", h.workspace, write, may("clusters", "run-plans"))
	h.allow(t, "stranger", h.workspace, write)
	h.allow(t, "stranger", h.other, may("clusters", "run-plans"))
	h.allow(t, "one", h.workspace, write, rbacv1.PolicyRule{APIGroups: []string{"cluster.drover.dev"}, Resources: []string{"clusters"},
		ResourceNames: []string{"dev"}, Verbs: []string{"run-plans"}})
	plan := func(name, target string) *unstructured.Unstructured {
		return object(t, fmt.Sprintf("{kind: Plan, metadata: {namespace: %s, name: %s}, spec: {%s version: v1, concurrency: 1, upgrade: {image: a}}}", h.workspace, name, target))
	}
	author, runner, one := h.as(t, "author"), h.as(t, "runner"), h.as(t, "one")
	for _, target := range []string{"clusterName: prod,", "clusterSelector: {},", "clusterSelector: {matchLabels: {env: prod}},"} {
		for user, c := range map[string]client.Client{"author": author, "stranger": h.as(t, "stranger"), "one": one} {
			wantRefused(t, c.Create(t.Context(), plan("refused", target)), "user "+user+" cannot run-plans on clusters")
		}
	}
	wantTaken(t, one.Create(t.Context(), plan("dev", "clusterName: dev,")))
	const itself = "a Plan in a workspace applies to its members: set clusterName or clusterSelector"
	for _, c := range []client.Client{author, runner} {
		wantRefused(t, c.Create(t.Context(), plan("own", "")), itself)
	}
	h.plansNamespace(t)
	h.allow(t, "author", "drover-plans", write)
	own := plan("own", "")
	own.SetNamespace("drover-plans")
	wantTaken(t, author.Create(t.Context(), own))
	made := plan("k3s", "clusterSelector: {},")
	wantTaken(t, runner.Create(t.Context(), made))
	for name, change := range map[string]func(map[string]any){
		"another image":      func(spec map[string]any) { spec["upgrade"] = map[string]any{"image": "b"} },
		"a command":          func(spec map[string]any) { spec["upgrade"].(map[string]any)["command"] = []any{"sh"} },
		"another version":    func(spec map[string]any) { spec["version"] = "v2" },
		"a channel more":     func(spec map[string]any) { spec["channel"] = "https://example.org/latest" },
		"other members":      func(spec map[string]any) { delete(spec, "clusterSelector"); spec["clusterName"] = "prod" },
		"more nodes at once": func(spec map[string]any) { spec["concurrency"] = int64(2) },
		"a pause and more":   func(spec map[string]any) { spec["paused"] = true; spec["cordon"] = true },
	} {
		t.Run(name, func(t *testing.T) {
			changed := made.DeepCopy()
			change(changed.Object["spec"].(map[string]any))
			wantRefused(t, author.Update(t.Context(), changed.DeepCopy(), client.DryRunAll), "cannot run-plans on clusters")
			wantTaken(t, runner.Update(t.Context(), changed, client.DryRunAll))
		})
	}
	prod := plan("prod", "clusterName: prod,")
	wantTaken(t, runner.Create(t.Context(), prod))
	prod.Object["spec"].(map[string]any)["clusterName"] = "dev"
	wantRefused(t, one.Update(t.Context(), prod.DeepCopy(), client.DryRunAll), "cannot run-plans on clusters prod")
	orphaned := made.DeepCopy()
	orphaned.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "none", UID: "none"}})
	wantRefused(t, author.Update(t.Context(), orphaned.DeepCopy(), client.DryRunAll), "cannot run-plans on clusters")
	resumed := made.DeepCopy()
	resumed.SetAnnotations(map[string]string{"cluster.drover.dev/resume": "an old revision"})
	wantRefused(t, author.Update(t.Context(), resumed, client.DryRunAll), "cannot run-plans on clusters")
	wantTaken(t, runner.Update(t.Context(), orphaned, client.DryRunAll))
	own.Object["spec"].(map[string]any)["clusterName"] = "prod"
	wantRefused(t, author.Update(t.Context(), own), "cannot run-plans on clusters prod")
	aimless := made.DeepCopy()
	delete(aimless.Object["spec"].(map[string]any), "clusterSelector")
	wantRefused(t, runner.Update(t.Context(), aimless), itself)
	for _, paused := range []any{true, false} {
		made.Object["spec"].(map[string]any)["paused"] = paused
		made.SetLabels(map[string]string{"paused": fmt.Sprint(paused)})
		wantTaken(t, author.Update(t.Context(), made))
	}
}

func testPlanSecret(t *testing.T, h *fixture) {
	h.allow(t, "uselabeller", h.workspace, may("secrets", "patch", "create"))
	h.allow(t, "usereader", h.workspace, may("secrets", "patch", "get"))
	secret := object(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: %s, name: used}}", h.workspace))
	h.Apply(t, secret)
	label := func(c client.Client, use string) error {
		return c.Patch(t.Context(), secret.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"plans.cluster.drover.dev/use":`+use+`}}}`)))
	}
	labeller, reader := h.as(t, "uselabeller"), h.as(t, "usereader")
	wantTaken(t, label(labeller, `"false"`))
	wantRefused(t, label(labeller, `"true"`), "user uselabeller cannot get secrets used")
	wantTaken(t, label(reader, `"true"`))
	wantTaken(t, label(labeller, `"false"`))
	wantRefused(t, label(labeller, `"true"`), "cannot get secrets used")
	wantTaken(t, label(labeller, `null`))
	wantRefused(t, label(labeller, `"true"`), "cannot get secrets used")
}

func testPlanClaims(t *testing.T, h *fixture) {
	h.allow(t, "claimant", h.workspace, may("clusters", "get", "patch"), may("clusters/labels", "update"))
	h.allow(t, "claimer", "", may("clusters", "patch"), may("clusters/status", "update"))
	cluster := object(t, fmt.Sprintf("{kind: Cluster, metadata: {namespace: %s, name: claimed}}", h.workspace))
	h.Apply(t, cluster)
	patch := func(c client.Client, kind, value string) error {
		return c.Patch(t.Context(), cluster.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"`+kind+`":{"plan.cluster.drover.dev/k3s":`+value+`}}}`)))
	}
	person, manager := h.as(t, "claimant"), h.as(t, "claimer")
	wantRefused(t, patch(person, "annotations", `"{}"`), "are claims of plans")
	wantTaken(t, patch(manager, "annotations", `"{}"`))
	wantRefused(t, patch(person, "annotations", `"x"`), "are claims of plans")
	wantRefused(t, patch(person, "annotations", `null`), "are claims of plans")
	wantTaken(t, patch(person, "labels", `"disabled"`))
	wantTaken(t, patch(manager, "annotations", `null`))

	h.allow(t, "importer", h.workspace, may("clusters", "create"))
	h.allow(t, "restorer", h.workspace, may("clusters", "create", "run-plans"))
	create := func(c client.Client, annotations string) error {
		return c.Create(t.Context(), object(t, fmt.Sprintf("{kind: Cluster, metadata: {namespace: %s, name: restored, annotations: {%s}}}", h.workspace, annotations)), client.DryRunAll)
	}
	wantTaken(t, create(h.as(t, "importer"), "note: mine"))
	wantRefused(t, create(h.as(t, "importer"), `plan.cluster.drover.dev/k3s: "{}"`), "are claims of plans")
	wantTaken(t, create(h.as(t, "restorer"), `plan.cluster.drover.dev/k3s: "{}"`))
}

// testWorkspaceRoles checks that an administrator of a namespace may do everything with these objects, and an editor
// may only read them.
func testWorkspaceRoles(t *testing.T, h *fixture) {
	for user, role := range map[string]string{"wsadmin": "drover-workspace-admin", "wsedit": "drover-workspace-editor", "wsview": "drover-workspace-viewer"} {
		h.bindRole(t, user, role)
	}
	everything := []*unstructured.Unstructured{
		binding(t, "ClusterRoleTemplateBinding", h.workspace, "all", "cluster-owner"), binding(t, "ProjectRoleTemplateBinding", h.workspace, "all", "project-owner"),
		object(t, fmt.Sprintf("{kind: Project, metadata: {namespace: %s, name: all}, spec: {clusterSelector: {}, namespaces: [web], podSecurity: privileged}}", h.workspace)),
		object(t, fmt.Sprintf("{kind: Plan, metadata: {namespace: %s, name: all}, spec: {clusterSelector: {}, version: v1, upgrade: {image: a}}}", h.workspace)),
	}
	h.AwaitRights(t, "wsadmin", h.workspace, may("projects", "create", "updatepsa"), may("roletemplates", "bind"), may("clusters", "run-plans"), may("plans", "approve", "override"), may("baselines", "approve"))
	h.AwaitRights(t, "wsedit", h.workspace, may("projects", "list"))
	h.AwaitRights(t, "wsview", h.workspace, may("projects", "list"))
	admin := h.as(t, "wsadmin")
	theirs := cluster(t, h.workspace, "theirs", "")
	h.Apply(t, theirs)
	wantTaken(t, admin.Patch(t.Context(), theirs.DeepCopy(), merge(`{"metadata":{"labels":{"env":"prod"}}}`)))
	wantTaken(t, admin.Delete(t.Context(), theirs, client.DryRunAll))
	for _, o := range everything {
		wantTaken(t, admin.Create(t.Context(), o.DeepCopy(), client.DryRunAll))
		for _, user := range []string{"wsedit", "wsview"} {
			if err := h.as(t, user).Create(t.Context(), o.DeepCopy(), client.DryRunAll); err == nil || !strings.Contains(err.Error(), "forbidden") {
				t.Errorf("%s: %v, want forbidden", user, err)
			}
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(o.GroupVersionKind())
			wantTaken(t, h.as(t, user).List(t.Context(), list, client.InNamespace(h.workspace)))
		}
		elsewhere := o.DeepCopy()
		elsewhere.SetNamespace(h.other)
		if err := admin.Create(t.Context(), elsewhere, client.DryRunAll); err == nil {
			t.Errorf("%s may be made in another workspace", o.GetKind())
		}
	}
}

// testProjectNamespaces checks that users with project roles may get the project's namespaces by name, but not list
// namespaces.
func testProjectNamespaces(t *testing.T, h *fixture) {
	template := &v1.RoleTemplate{}
	wantTaken(t, h.Client.Get(t.Context(), client.ObjectKey{Name: "project-viewer"}, template))
	h.Apply(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "drover:project:project-viewer"}, Rules: template.Spec.Rules})
	h.bindRole(t, "dora", "drover:project:project-viewer")
	h.AwaitRights(t, "dora", h.workspace, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"get"}})
	dora := h.as(t, "dora")
	wantTaken(t, dora.Get(t.Context(), client.ObjectKey{Name: h.workspace}, &corev1.Namespace{}))
	for what, err := range map[string]error{
		"another namespace": dora.Get(t.Context(), client.ObjectKey{Name: h.other}, &corev1.Namespace{}),
		"all of them":       dora.List(t.Context(), &corev1.NamespaceList{}),
		"a change": dora.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: h.workspace}},
			merge(`{"metadata":{"labels":{"cluster.drover.dev/project":"other"}}}`), client.DryRunAll),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want forbidden", what, err)
		}
	}
}

func testSamples(t *testing.T, h *fixture) {
	for _, o := range manifests(t, "config/samples") {
		if o.GetKind() != "RoleTemplate" {
			o.SetNamespace(h.workspace)
		}
		wantTaken(t, h.Client.Create(t.Context(), o, client.DryRunAll))
	}
}
