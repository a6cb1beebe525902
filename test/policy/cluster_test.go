// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/test/testkit"
)

// merge is a JSON merge patch.
func merge(format string, args ...any) client.Patch {
	return client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, format, args...))
}

func cluster(t *testing.T, namespace, name, rest string) *unstructured.Unstructured {
	t.Helper()
	return object(t, fmt.Sprintf("{kind: Cluster, metadata: {namespace: %s, name: %s%s}}", namespace, name, rest))
}

// cleaners are the users as which Kubernetes removes objects: the garbage collector and the namespace controller. They
// are the same user if kube-controller-manager runs without --use-service-account-credentials.
var cleaners = []string{
	"system:kube-controller-manager", "system:serviceaccount:kube-system:generic-garbage-collector", "system:serviceaccount:kube-system:namespace-controller",
}

// testClusterRestored checks that a user whose binding was deleted after the backup, and who may write Clusters, cannot
// cause it to be granted again.
func testClusterRestored(t *testing.T, h *fixture) {
	write := may("clusters", "get", "create", "update", "patch")
	h.allow(t, "writer", h.workspace, write, may("clusters/labels", "update"), may("clusters/agent", "delete"))
	h.allow(t, "confirmer-elsewhere", h.other, write, may("clusters/agent", "update"))
	h.allow(t, "confirmer-elsewhere", h.workspace, write)
	h.allow(t, "confirmer", h.workspace, write, may("clusters/agent", "update"))
	restored := cluster(t, h.workspace, "held", "")
	h.Apply(t, restored)
	set := func(c client.Client, value string, options ...client.PatchOption) error {
		return c.Patch(t.Context(), restored.DeepCopy(), merge(`{"metadata":{"annotations":{"cluster.drover.dev/restored":%s}}}`, value), options...)
	}
	for _, c := range []client.Client{h.as(t, "writer"), h.as(t, "confirmer-elsewhere"), h.manager(t)} {
		wantRefused(t, set(c, `"lease/1/a/2"`, client.DryRunAll), "cannot update clusters/agent held in namespace "+h.workspace)
	}
	wantTaken(t, set(h.as(t, "confirmer"), `"lease/1/a/2"`))
	wantTaken(t, h.as(t, "writer").Patch(t.Context(), restored.DeepCopy(), merge(`{"metadata":{"annotations":{"other":"x"}}}`), client.DryRunAll))
	wantRefused(t, set(h.as(t, "writer"), `"lease/1/a/3"`, client.DryRunAll), "cannot update clusters/agent held")
	wantTaken(t, set(h.as(t, "writer"), "null", client.DryRunAll))
	again := cluster(t, h.workspace, "held-again", `, annotations: {cluster.drover.dev/restored: lease/1/a/2}`)
	wantRefused(t, h.as(t, "writer").Create(t.Context(), again.DeepCopy(), client.DryRunAll), "cannot update clusters/agent held-again in namespace "+h.workspace)
	wantTaken(t, h.as(t, "confirmer").Create(t.Context(), again.DeepCopy(), client.DryRunAll))
	wantTaken(t, h.as(t, "writer").Create(t.Context(), cluster(t, h.workspace, "held-again", ""), client.DryRunAll))
}

// testHostRestored checks that a user who may write Hosts cannot cause a Host to be cleaned by confirming what a
// restored hub would do.
func testHostRestored(t *testing.T, h *fixture) {
	write := may("hosts", "get", "create", "update", "patch")
	h.allow(t, "host-writer", h.workspace, write, may("clusters/agent", "update"), may("hosts/instructions", "update"))
	h.allow(t, "host-confirmer", h.workspace, write, may("hosts/agent", "update"))
	held := object(t, fmt.Sprintf("{kind: Host, metadata: {namespace: %s, name: held}}", h.workspace))
	h.Apply(t, held)
	set := func(c client.Client) error {
		return c.Patch(t.Context(), held.DeepCopy(), merge(`{"metadata":{"annotations":{"cluster.drover.dev/restored":"lease/1/a/2"}}}`), client.DryRunAll)
	}
	wantRefused(t, set(h.as(t, "host-writer")), "cannot update hosts/agent held in namespace "+h.workspace)
	wantRefused(t, set(h.manager(t)), "cannot update hosts/agent held in namespace "+h.workspace)
	wantTaken(t, set(h.as(t, "host-confirmer")))
	again := object(t, fmt.Sprintf("{kind: Host, metadata: {namespace: %s, name: again, annotations: {cluster.drover.dev/restored: lease/1/a/2}}}", h.workspace))
	wantRefused(t, h.as(t, "host-writer").Create(t.Context(), again, client.DryRunAll), "cannot update hosts/agent again")
}

// testClusterLabels checks every request that writes a Cluster's labels, because a label makes other users' bindings,
// Projects and Plans select the Cluster.
func testClusterLabels(t *testing.T, h *fixture) {
	write := may("clusters", "get", "create", "update", "patch")
	h.allow(t, "relabeller", h.workspace, write)
	h.allow(t, "labeller-elsewhere", h.other, write, may("clusters/labels", "update"))
	h.allow(t, "labeller-elsewhere", h.workspace, write)
	h.allow(t, "labelholder", h.workspace, write, may("clusters/labels", "update"))
	labelled := cluster(t, h.workspace, "labelled", ", labels: {env: dev, ring: a}")
	wantTaken(t, h.as(t, "relabeller").Create(t.Context(), labelled)) // a new member comes with any labels
	for name, try := range map[string]func(client.Client) error{
		"a label that is added": func(c client.Client) error {
			return c.Patch(t.Context(), labelled.DeepCopy(), merge(`{"metadata":{"labels":{"more":"x"}}}`), client.DryRunAll)
		},
		"a label that is changed": func(c client.Client) error {
			return c.Patch(t.Context(), labelled.DeepCopy(), client.RawPatch("application/json-patch+json", []byte(`[{"op":"replace","path":"/metadata/labels/env","value":"prod"}]`)), client.DryRunAll)
		},
		"a label that is taken away": func(c client.Client) error {
			return c.Patch(t.Context(), labelled.DeepCopy(), merge(`{"metadata":{"labels":{"env":null}}}`), client.DryRunAll)
		},
		"all labels that are taken away": func(c client.Client) error {
			changed := labelled.DeepCopy()
			changed.SetLabels(nil)
			return c.Update(t.Context(), changed, client.DryRunAll)
		},
		"server-side apply": func(c client.Client) error {
			return c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(cluster(t, h.workspace, "labelled", ", labels: {env: prod}")),
				client.ForceOwnership, client.FieldOwner("test"), client.DryRunAll)
		},
		"a plan that is held off": func(c client.Client) error {
			return c.Patch(t.Context(), labelled.DeepCopy(), merge(`{"metadata":{"labels":{"plans.cluster.drover.dev/hold":"true"}}}`), client.DryRunAll)
		},
		"a plan that is disabled": func(c client.Client) error {
			return c.Patch(t.Context(), labelled.DeepCopy(), merge(`{"metadata":{"labels":{"plan.cluster.drover.dev/k3s":"disabled"}}}`), client.DryRunAll)
		},
	} {
		t.Run(name, func(t *testing.T) {
			wantRefused(t, try(h.as(t, "relabeller")), "user relabeller cannot update clusters/labels labelled in namespace "+h.workspace)
			wantRefused(t, try(h.as(t, "labeller-elsewhere")), "cannot update clusters/labels labelled")
			wantTaken(t, try(h.as(t, "labelholder")))
		})
	}
	t.Run("what decides nothing is free", func(t *testing.T) {
		for _, patch := range []string{`{"metadata":{"annotations":{"note":"mine"}}}`, `{"spec":{"registration":{"tokenTTL":"1h"}}}`, `{"metadata":{"labels":{"env":"dev"}}}`} {
			wantTaken(t, h.as(t, "relabeller").Patch(t.Context(), labelled.DeepCopy(), merge("%s", patch)))
		}
	})
}

// crowded is a Cluster with the given number of labels.
func crowded(t *testing.T, namespace, name string, labels int) *unstructured.Unstructured {
	t.Helper()
	o := cluster(t, namespace, name, "")
	o.SetLabels(numbered(labels, "example.com/l"))
	return o
}

// numbered returns the given number of labels that begin with the prefix.
func numbered(n int, prefix string) map[string]string {
	labels := map[string]string{}
	for i := range n {
		labels[fmt.Sprintf("%s%d", prefix, i)] = "x"
	}
	return labels
}

// testClusterMetadata checks that a user who may create Clusters cannot fill the manager's memory with labels and
// finalizers.
func testClusterMetadata(t *testing.T, h *fixture) {
	h.allow(t, "crowder", h.workspace, may("clusters", "get", "create", "update", "patch"), may("clusters/labels", "update"), may("clusters/agent", "delete"))
	user := h.as(t, "crowder")
	const labels, plans, finalizers = "a cluster can have 64 labels, and this one has %d", "a cluster can have 256 labels plan.cluster.drover.dev/..., and this one has %d",
		"a cluster can have 16 finalizers, and this one has %d"
	wantTaken(t, user.Create(t.Context(), crowded(t, h.workspace, "most", 64), client.DryRunAll))
	wantRefused(t, user.Create(t.Context(), crowded(t, h.workspace, "most", 65), client.DryRunAll), fmt.Sprintf(labels, 65))
	wantRefused(t, user.Create(t.Context(), crowded(t, h.workspace, "most", 3000), client.DryRunAll), fmt.Sprintf(labels, 3000))

	made := crowded(t, h.workspace, "filled", 64)
	wantTaken(t, user.Create(t.Context(), made))
	change := func(c client.Client, change func(*unstructured.Unstructured)) error {
		changed := made.DeepCopy()
		change(changed)
		return c.Update(t.Context(), changed, client.DryRunAll)
	}
	add := func(labels map[string]string) func(*unstructured.Unstructured) {
		return func(o *unstructured.Unstructured) {
			all := o.GetLabels()
			maps.Copy(all, labels)
			o.SetLabels(all)
		}
	}
	finalized := func(n int) func(*unstructured.Unstructured) {
		return func(o *unstructured.Unstructured) {
			o.SetFinalizers(slices.Sorted(maps.Keys(numbered(n, "example.com/f"))))
		}
	}
	wantRefused(t, change(user, add(numbered(1, "more"))), fmt.Sprintf(labels, 65))
	wantTaken(t, change(user, add(numbered(256, "plan.cluster.drover.dev/p"))))
	wantRefused(t, change(user, add(numbered(257, "plan.cluster.drover.dev/p"))), fmt.Sprintf(plans, 257))
	wantTaken(t, change(h.manager(t), add(numbered(257, "plan.cluster.drover.dev/p"))))
	wantTaken(t, change(user, finalized(16)))
	wantRefused(t, change(user, finalized(17)), fmt.Sprintf(finalizers, 17))

	t.Run("a Cluster that has more may keep them", func(t *testing.T) {
		h.Apply(t, crowded(t, h.workspace, "old", 70)) // the hub's administrator may
		old := cluster(t, h.workspace, "old", "")
		wantTaken(t, user.Patch(t.Context(), old.DeepCopy(), merge(`{"spec":{"registration":{"tokenTTL":"1h"}}}`), client.DryRunAll))
		wantTaken(t, user.Patch(t.Context(), old.DeepCopy(), merge(`{"metadata":{"labels":{"example.com/l1":null}}}`), client.DryRunAll))
		wantRefused(t, user.Patch(t.Context(), old.DeepCopy(), merge(`{"metadata":{"labels":{"more":"x"}}}`), client.DryRunAll), fmt.Sprintf(labels, 71))
	})
}

// testClusterFacts checks that only the manager writes what the agent has detected, at creation and later.
func testClusterFacts(t *testing.T, h *fixture) {
	h.allow(t, "clusters", h.workspace, may("clusters", "get", "create", "patch"), may("clusters/labels", "update"))
	person := h.as(t, "clusters")
	facts := cluster(t, h.workspace, "facts", "")
	h.Apply(t, facts)
	label := func(c client.Client, key, value string) error {
		return c.Patch(t.Context(), facts.DeepCopy(), merge(`{"metadata":{"labels":{%q:%s}}}`, key, value))
	}
	wantRefused(t, label(person, "cluster.drover.dev/distribution", `"k3s"`), "use labels of your own")
	wantTaken(t, label(h.manager(t), "cluster.drover.dev/distribution", `"k3s"`))
	wantRefused(t, label(person, "cluster.drover.dev/distribution", `"rke2"`), "use labels of your own")
	wantTaken(t, label(h.manager(t), "plan.cluster.drover.dev/k3s", `"4711"`))
	for _, key := range []string{"env", "plans.cluster.drover.dev/hold", "plans.cluster.drover.dev/other"} {
		wantRefused(t, label(h.manager(t), key, `"prod"`), "cannot update clusters/labels facts")
	}
	wantTaken(t, label(person, "env", `"prod"`))
	wantRefused(t, label(h.manager(t), "env", `null`), "cannot update clusters/labels facts")
	wantTaken(t, label(person, "cluster.drover.dev/distribution", `null`))
	made := cluster(t, h.workspace, "made", ", labels: {cluster.drover.dev/version: v1.36, env: prod}")
	wantRefused(t, person.Create(t.Context(), made.DeepCopy(), client.DryRunAll), "use labels of your own")
	wantRefused(t, person.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(made.DeepCopy()), client.FieldOwner("test"), client.DryRunAll), "use labels of your own")
	h.allow(t, "backup", h.workspace, may("clusters", "create"), may("clusters/status", "update"))
	wantTaken(t, h.as(t, "backup").Create(t.Context(), made, client.DryRunAll))
}

// testClusterDeletion checks that every request that deletes a Cluster requires a separate right, because this
// uninstalls the agent with everything that it maintains.
func testClusterDeletion(t *testing.T, h *fixture) {
	workspace := h.Workspace(t)
	write := may("clusters", "get", "create", "update", "patch", "delete", "deletecollection")
	h.allow(t, "undeleter", workspace, write)
	h.allow(t, "deleter", workspace, write, may("clusters/agent", "delete"))
	undeleter, deleter := h.as(t, "undeleter"), h.as(t, "deleter")
	going := cluster(t, workspace, "going", ", finalizers: [cluster.drover.dev/uninstall]")
	h.Apply(t, going)
	all := func(c client.Client) error {
		return c.DeleteAllOf(t.Context(), going.DeepCopy(), client.InNamespace(workspace), client.DryRunAll)
	}
	const refusal = "user undeleter cannot delete clusters/agent going"
	wantRefused(t, undeleter.Delete(t.Context(), going.DeepCopy(), client.DryRunAll), refusal)
	wantRefused(t, all(undeleter), refusal)
	wantTaken(t, deleter.Delete(t.Context(), going.DeepCopy(), client.DryRunAll))
	wantTaken(t, all(deleter))
	for name, patch := range map[string]string{
		"an owner that is not there":       `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"none","uid":"0"}]}}`,
		"a finalizer that is taken away":   `{"metadata":{"finalizers":[]}}`,
		"a finalizer that is never served": `{"metadata":{"finalizers":["cluster.drover.dev/uninstall","example.com/stay"]}}`,
		"what deletion does":               `{"spec":{"deletionPolicy":"Orphan"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			wantRefused(t, undeleter.Patch(t.Context(), going.DeepCopy(), merge("%s", patch), client.DryRunAll), refusal)
			wantTaken(t, deleter.Patch(t.Context(), going.DeepCopy(), merge("%s", patch), client.DryRunAll))
		})
	}
	t.Run("the manager has its own finalizer and no other", func(t *testing.T) {
		manager := h.manager(t)
		wantTaken(t, manager.Patch(t.Context(), going.DeepCopy(), merge(`{"metadata":{"finalizers":[]}}`), client.DryRunAll))
		wantRefused(t, manager.Patch(t.Context(), going.DeepCopy(), merge(`{"metadata":{"finalizers":["cluster.drover.dev/uninstall","a.b/c"]}}`), client.DryRunAll), "clusters/agent going")
		wantRefused(t, manager.Patch(t.Context(), going.DeepCopy(), merge(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"none","uid":"0"}]}}`), client.DryRunAll), "clusters/agent going")
	})
	testProtection(t, h, workspace)
}

// testProtection checks that a protected Cluster is only deleted with its workspace, and that this deletion does not
// hang.
func testProtection(t *testing.T, h *fixture, workspace string) {
	undeleter, deleter := h.as(t, "undeleter"), h.as(t, "deleter")
	kept := cluster(t, workspace, "kept", ", finalizers: [cluster.drover.dev/uninstall]")
	h.Apply(t, kept)
	set := func(c client.Client, value string) error {
		return c.Patch(t.Context(), kept.DeepCopy(), merge(`{"spec":{"deletionProtection":%s}}`, value))
	}
	wantTaken(t, set(undeleter, "true"))
	const what = "kept in namespace %s is protected: to delete it, set spec.deletionProtection to false first"
	users := map[string]client.Client{"a user who may delete": deleter, "the hub's administrator": h.Client}
	for _, name := range cleaners {
		h.allow(t, name, workspace, may("clusters", "get", "update", "patch", "delete", "deletecollection"))
		users[name] = h.as(t, name)
	}
	for name, c := range users {
		t.Run("protected from "+name, func(t *testing.T) {
			wantRefused(t, c.Delete(t.Context(), kept.DeepCopy(), client.DryRunAll), fmt.Sprintf(what, workspace))
		})
	}
	wantRefused(t, set(undeleter, "false"), "user undeleter cannot delete clusters/agent kept")
	wantRefused(t, set(undeleter, "null"), "user undeleter cannot delete clusters/agent kept")
	wantTaken(t, set(deleter, "false"))
	wantTaken(t, deleter.Delete(t.Context(), kept.DeepCopy(), client.DryRunAll))
	for _, name := range cleaners { // of an owner that is gone
		wantTaken(t, users[name].Delete(t.Context(), kept.DeepCopy(), client.DryRunAll))
		wantTaken(t, users[name].Patch(t.Context(), kept.DeepCopy(), merge(`{"metadata":{"finalizers":[]}}`), client.DryRunAll))
	}
	wantTaken(t, set(undeleter, "true"))
	wantTaken(t, h.Client.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: workspace}}))
	for name, c := range users {
		t.Run("a workspace that is deleted, by "+name, func(t *testing.T) {
			testkit.Eventually(t, 10*time.Second, func(ctx context.Context) error { // a server learns of it a moment later
				return c.Delete(ctx, kept.DeepCopy(), client.DryRunAll)
			})
			wantTaken(t, c.DeleteAllOf(t.Context(), kept.DeepCopy(), client.InNamespace(workspace), client.DryRunAll))
		})
	}
	wantRefused(t, undeleter.Patch(t.Context(), kept.DeepCopy(), merge(`{"metadata":{"finalizers":[]}}`), client.DryRunAll), "cannot delete clusters/agent kept")
}

// testCleanUp checks that every policy that could prevent Kubernetes from cleaning up exempts the same users with the
// same expression.
func testCleanUp(t *testing.T, _ *fixture) {
	const name, plans, protection = "not-cleaned-up-by-kubernetes", "drover-plan", "drover-cluster-protection"
	quoted := make([]string, len(cleaners))
	for i, cleaner := range cleaners {
		quoted[i] = "'" + cleaner + "'"
	}
	want := "!(request.userInfo.username in [" + strings.Join(quoted, ", ") + "])"
	seen := 0
	for _, o := range manifests(t, "config/policy") {
		rules, found, _ := unstructured.NestedSlice(o.Object, "spec", "matchConstraints", "resourceRules")
		if !found || o.GetKind() != "ValidatingAdmissionPolicy" {
			continue
		}
		deletes := strings.Contains(fmt.Sprint(rules), "DELETE") && o.GetName() != protection && !strings.HasPrefix(o.GetName(), "drover-manager-")
		conditions, _, _ := unstructured.NestedSlice(o.Object, "spec", "matchConditions")
		has := false
		for _, condition := range conditions {
			if condition := condition.(map[string]any); condition["name"] == name {
				has = true
				if condition["expression"] != want {
					t.Errorf("%s: %s, want another expression", o.GetName(), condition["expression"])
				}
			}
		}
		if has != (deletes || o.GetName() == plans) {
			t.Errorf("%s: has the condition: %t", o.GetName(), has)
		}
		if has {
			seen++
		}
	}
	if seen < 3 {
		t.Errorf("%d policies have it", seen)
	}
}

// testEditor checks that an editor of a workspace cannot change fields that decide rights.
func testEditor(t *testing.T, h *fixture) {
	h.bindRole(t, "patcher", "drover-workspace-editor")
	h.AwaitRights(t, "patcher", h.workspace, may("clusters", "patch", "create"))
	editor := h.as(t, "patcher")
	edited := cluster(t, h.workspace, "edited", ", labels: {env: dev}")
	h.Apply(t, edited)
	for patch, want := range map[string]string{
		`{"metadata":{"labels":{"env":"prod"}}}`:                                                            "cannot update clusters/labels",
		`{"metadata":{"labels":{"cluster.drover.dev/version":"v1.36"}}}`:                                    "denied",
		`{"metadata":{"annotations":{"plan.cluster.drover.dev/k3s":"{}"}}}`:                                 "are claims of plans",
		`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"none","uid":"0"}]}}`: "cannot delete clusters/agent",
		`{"metadata":{"finalizers":["a.b/c"]}}`:                                                             "cannot delete clusters/agent",
	} {
		wantRefused(t, editor.Patch(t.Context(), edited.DeepCopy(), merge("%s", patch), client.DryRunAll), want)
	}
	forbidden := func(what string, err error) {
		if err == nil || !strings.Contains(err.Error(), "forbidden") {
			t.Errorf("%s: %v, want forbidden", what, err)
		}
	}
	forbidden("delete", editor.Delete(t.Context(), edited.DeepCopy(), client.DryRunAll))
	forbidden("delete all", editor.DeleteAllOf(t.Context(), edited.DeepCopy(), client.InNamespace(h.workspace), client.DryRunAll))
	forbidden("status", editor.Status().Patch(t.Context(), edited.DeepCopy(), merge(`{"status":{"version":"v0"}}`), client.DryRunAll))
	for _, o := range []*unstructured.Unstructured{
		binding(t, "ClusterRoleTemplateBinding", h.workspace, "edited", "cluster-viewer"), binding(t, "ProjectRoleTemplateBinding", h.workspace, "edited", "project-viewer"),
		object(t, fmt.Sprintf("{kind: Project, metadata: {namespace: %s, name: edited}, spec: {clusterName: a}}", h.workspace)),
		object(t, fmt.Sprintf("{kind: Plan, metadata: {namespace: %s, name: edited}, spec: {clusterName: a, version: v1, upgrade: {image: a}}}", h.workspace)),
		object(t, "{kind: RoleTemplate, metadata: {name: edited}, spec: {context: Cluster, inherits: [cluster-viewer]}}"),
	} {
		h.Apply(t, o)
		for _, patch := range []string{
			`{"metadata":{"labels":{"a":"b"}}}`, `{"metadata":{"annotations":{"a":"b"}}}`, `{"metadata":{"finalizers":["a.b/c"]}}`,
			`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"none","uid":"0"}]}}`, `{"spec":{"paused":true}}`,
		} {
			forbidden(o.GetKind()+" "+patch, editor.Patch(t.Context(), o.DeepCopy(), merge("%s", patch), client.DryRunAll))
		}
		forbidden(o.GetKind()+" status", editor.Status().Patch(t.Context(), o.DeepCopy(), merge(`{"status":{"observedGeneration":9}}`), client.DryRunAll))
		forbidden(o.GetKind()+" delete", editor.Delete(t.Context(), o.DeepCopy(), client.DryRunAll))
	}
}

// bindRole binds the user to a ClusterRole in the workspace.
func (h *fixture) bindRole(t *testing.T, user, role string) {
	t.Helper()
	h.Apply(t, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: h.workspace, Name: user},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}})
}
