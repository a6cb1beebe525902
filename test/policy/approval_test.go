// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var approvedRevision = strings.Repeat("0123456789abcdef", 4)[:56]

// gatedPlan is a Plan with a wave that requires approval.
func gatedPlan(t *testing.T, namespace, name string, approvals ...any) *unstructured.Unstructured {
	t.Helper()
	plan := object(t, fmt.Sprintf("{kind: Plan, metadata: {namespace: %s, name: %s}, spec: {clusterSelector: {}, "+
		"version: v1, upgrade: {image: a}, rollout: {waves: [{name: canary}, {name: prod, approval: Required}]}}}",
		namespace, name))
	return withApprovals(t, plan, approvals...)
}

func withApprovals(t *testing.T, plan *unstructured.Unstructured, approvals ...any) *unstructured.Unstructured {
	t.Helper()
	plan = plan.DeepCopy()
	if len(approvals) == 0 {
		unstructured.RemoveNestedField(plan.Object, "spec", "approvals")
		return plan
	}
	wantTaken(t, unstructured.SetNestedSlice(plan.Object, approvals, "spec", "approvals"))
	return plan
}

func approvalBy(user, wave string) map[string]any {
	return map[string]any{"wave": wave, "revision": approvedRevision, "approvedBy": user}
}

// approvalsOf returns the approvals of a stored Plan, as wave and user.
func (h *fixture) approvalsOf(t *testing.T, plan client.Object) []string {
	t.Helper()
	stored := object(t, "{kind: Plan}")
	wantTaken(t, h.Client.Get(t.Context(), client.ObjectKeyFromObject(plan), stored))
	found, _, err := unstructured.NestedSlice(stored.Object, "spec", "approvals")
	wantTaken(t, err)
	var all []string
	for _, entry := range found {
		a := entry.(map[string]any)
		all = append(all, fmt.Sprintf("%v by %v", a["wave"], a["approvedBy"]))
	}
	return all
}

// testApproval: an approval takes the verb "approve" and the user's own name, however it comes into the Plan.
func testApproval(t *testing.T, h *fixture) {
	workspace := h.Workspace(t)
	all := may("plans", "get", "create", "update", "patch", "delete")
	runs := may("clusters", "run-plans")
	h.allow(t, "planner", workspace, all, runs, may("plans/status", "get", "update", "patch"))
	h.allow(t, "approver", workspace, may("plans", "get", "update", "patch", "approve"))
	h.allow(t, "lead", workspace, all, runs, may("plans", "approve"))
	h.allow(t, "k3sonly", workspace, all, runs, rbacv1.PolicyRule{APIGroups: []string{"cluster.drover.dev"},
		Resources: []string{"plans"}, ResourceNames: []string{"k3s"}, Verbs: []string{"approve"}})
	planner, approver, lead := h.as(t, "planner"), h.as(t, "approver"), h.as(t, "lead")
	const inTheName, verb = "cannot approve in the name of", "cannot approve plans k3s in namespace "
	dry := client.DryRunAll
	made := gatedPlan(t, workspace, "k3s")
	t.Run("a new Plan has only approvals of its creator", func(t *testing.T) {
		create := func(c client.Client, name, user string) error {
			return c.Create(t.Context(), gatedPlan(t, workspace, name, approvalBy(user, "prod")), dry)
		}
		wantRefused(t, create(planner, "k3s", "approver"), "user planner "+inTheName+" approver")
		wantRefused(t, create(planner, "k3s", "planner"), "user planner "+verb+workspace)
		wantRefused(t, create(lead, "k3s", "approver"), "user lead "+inTheName+" approver")
		wantTaken(t, create(lead, "k3s", "lead"))
		wantTaken(t, create(h.as(t, "k3sonly"), "k3s", "k3sonly"))
		wantRefused(t, create(h.as(t, "k3sonly"), "another", "k3sonly"), "cannot approve plans another")
		generated := gatedPlan(t, workspace, "", approvalBy("k3sonly", "prod"))
		generated.SetGenerateName("k3s")
		wantRefused(t, h.as(t, "k3sonly").Create(t.Context(), generated, dry), "cannot approve plans k3s")
	})
	wantTaken(t, planner.Create(t.Context(), made))
	t.Run("approving takes the verb, and no right to run plans", func(t *testing.T) {
		own := withApprovals(t, made, approvalBy("planner", "prod"))
		wantRefused(t, planner.Update(t.Context(), own, dry), "user planner "+verb)
		wantRefused(t, planner.Update(t.Context(), withApprovals(t, made, approvalBy("approver", "prod")), dry), inTheName)
		wantRefused(t, approver.Update(t.Context(), withApprovals(t, made, approvalBy("lead", "prod")), dry), inTheName)
		mixed := withApprovals(t, made, approvalBy("approver", "prod"), approvalBy("lead", "canary"))
		wantRefused(t, approver.Update(t.Context(), mixed, dry), inTheName+" lead")
		more := withApprovals(t, made, approvalBy("approver", "prod"))
		wantTaken(t, unstructured.SetNestedField(more.Object, "v2", "spec", "version"))
		wantRefused(t, approver.Update(t.Context(), more, dry), "user approver cannot run-plans")
		made = withApprovals(t, made, approvalBy("approver", "prod"))
		wantTaken(t, approver.Update(t.Context(), made))
	})
	t.Run("an approval of another user cannot be changed, copied or restored", func(t *testing.T) {
		for name, entry := range map[string]map[string]any{
			"another wave":     {"wave": "canary"},
			"another revision": {"revision": strings.Repeat("f", 56)},
		} {
			changed := approvalBy("approver", "prod")
			maps.Copy(changed, entry)
			for _, entries := range [][]any{{changed}, {approvalBy("approver", "prod"), changed}} {
				if len(entries) == 2 && changed["wave"] == "prod" {
					continue // the schema accepts one approval of each wave
				}
				t.Run(name, func(t *testing.T) {
					wantRefused(t, planner.Update(t.Context(), withApprovals(t, made, entries...), dry), inTheName+" approver")
				})
			}
		}
		copied := gatedPlan(t, workspace, "copy", approvalBy("approver", "prod"))
		wantRefused(t, planner.Create(t.Context(), copied), inTheName+" approver")
		again := made.DeepCopy()
		wantTaken(t, planner.Delete(t.Context(), made))
		again.SetResourceVersion("")
		wantRefused(t, planner.Create(t.Context(), again), inTheName+" approver")
		made = gatedPlan(t, workspace, "k3s")
		wantTaken(t, planner.Create(t.Context(), made))
		status := withApprovals(t, made, approvalBy("approver", "prod"))
		wantTaken(t, planner.Status().Update(t.Context(), status))
		if got := h.approvalsOf(t, made); len(got) != 0 {
			t.Errorf("a write of the status left the approvals %v, want none", got)
		}
	})
	t.Run("accounts of the system forge no approval", func(t *testing.T) {
		const controllers = "system:serviceaccount:kube-system:"
		patch := merge(`{"spec":{"approvals":[{"wave":"prod","revision":"%s","approvedBy":"approver"}]}}`, approvedRevision)
		for _, user := range []string{managerUser(t), "system:kube-controller-manager",
			controllers + "generic-garbage-collector", controllers + "namespace-controller"} {
			h.allow(t, user, workspace, all) // as if its role were too wide
			err := h.as(t, user).Patch(t.Context(), gatedPlan(t, workspace, "k3s"), patch, dry)
			wantRefused(t, err, "user "+user+" "+inTheName+" approver")
		}
		wantRefused(t, h.Client.Patch(t.Context(), gatedPlan(t, workspace, "k3s"), patch, dry), inTheName+" approver")
		patch = merge(`{"spec":{"approvals":[{"wave":"prod","revision":"%s","approvedBy":"%s"}]}}`, approvedRevision,
			managerUser(t))
		wantRefused(t, h.manager(t).Patch(t.Context(), gatedPlan(t, workspace, "k3s"), patch, dry), verb)
	})
	t.Run("approvals remain when others write the Plan, and anyone who updates it can remove them", func(t *testing.T) {
		wantTaken(t, approver.Patch(t.Context(), gatedPlan(t, workspace, "k3s"), merge(
			`{"spec":{"approvals":[{"wave":"prod","revision":"%s","approvedBy":"approver"}]}}`, approvedRevision)))
		edit := merge(`{"spec":{"version":"v2"},"metadata":{"labels":{"a":"b"}}}`)
		wantTaken(t, planner.Patch(t.Context(), gatedPlan(t, workspace, "k3s"), edit))
		if got := h.approvalsOf(t, made); !slices.Equal(got, []string{"prod by approver"}) {
			t.Errorf("after an edit the approvals are %v, want that of approver", got)
		}
		h.allow(t, "pauser", workspace, may("plans", "get", "patch"))
		removal := merge(`{"spec":{"approvals":null}}`)
		wantTaken(t, h.as(t, "pauser").Patch(t.Context(), gatedPlan(t, workspace, "k3s"), removal))
		if got := h.approvalsOf(t, made); len(got) != 0 {
			t.Errorf("the approvals are %v, want that they were removed", got)
		}
	})
}

// testApprovalBesideGitOps: a tool that applies a Plan from Git keeps the approvals of users, and can add its own.
func testApprovalBesideGitOps(t *testing.T, h *fixture) {
	workspace := h.Workspace(t)
	const flux = "system:serviceaccount:flux-system:kustomize-controller"
	h.allow(t, flux, workspace, may("plans", "get", "create", "patch", "approve"), may("clusters", "run-plans"))
	h.allow(t, "reviewer", workspace, may("plans", "get", "patch", "approve"))
	git := gatedPlan(t, workspace, "k3s")
	apply := func(plan *unstructured.Unstructured, options ...client.ApplyOption) *unstructured.Unstructured {
		t.Helper()
		applied := plan.DeepCopy()
		options = append(options, client.FieldOwner("kustomize-controller"), client.ForceOwnership)
		wantTaken(t, h.as(t, flux).Apply(t.Context(), client.ApplyConfigurationFromUnstructured(applied), options...))
		return applied
	}
	apply(git)
	wantTaken(t, h.as(t, "reviewer").Patch(t.Context(), git.DeepCopy(), merge(
		`{"spec":{"approvals":[{"wave":"prod","revision":"%s","approvedBy":"reviewer"}]}}`, approvedRevision),
		client.FieldOwner("drover-approval")))
	before := object(t, "{kind: Plan}")
	wantTaken(t, h.Client.Get(t.Context(), client.ObjectKeyFromObject(git), before))
	// kubectl diff --server-side compares the object with the result of a dry run.
	if diff := apply(git, client.DryRunAll); !reflect.DeepEqual(diff.Object["spec"], before.Object["spec"]) {
		t.Errorf("a diff shows the spec %v, want %v", diff.Object["spec"], before.Object["spec"])
	}
	if got := apply(git); got.GetResourceVersion() != before.GetResourceVersion() {
		t.Errorf("applying again writes version %s, want none after %s", got.GetResourceVersion(),
			before.GetResourceVersion())
	}
	apply(withApprovals(t, git, approvalBy(flux, "canary")))
	if got := h.approvalsOf(t, git); len(got) != 2 {
		t.Errorf("the approvals are %v, want those of the reviewer and of Git", got)
	}
	apply(git)
	if got := h.approvalsOf(t, git); !slices.Equal(got, []string{"prod by reviewer"}) {
		t.Errorf("after Git dropped its approval they are %v, want that of the reviewer", got)
	}
}

// testBaselineApproval: approvals of a Baseline follow the same rules, and require no right to bind its role template.
func testBaselineApproval(t *testing.T, h *fixture) {
	workspace := h.Workspace(t)
	bind := may("roletemplates", "bind")
	h.allow(t, "author", workspace, may("baselines", "get", "create", "update", "patch", "delete"), bind)
	h.allow(t, "reviewer", workspace, may("baselines", "get", "update", "patch", "approve"))
	h.allow(t, "planapprover", workspace, may("baselines", "get", "update", "patch"), may("plans", "approve"))
	author, reviewer := h.as(t, "author"), h.as(t, "reviewer")
	const inTheName, verb = "cannot approve in the name of", "cannot approve baselines cni in namespace "
	gated := func(approvals ...any) *unstructured.Unstructured {
		b := baselineOf(t, workspace, "cni", "ConfigMap")
		wantTaken(t, unstructured.SetNestedSlice(b.Object, []any{map[string]any{"name": "prod", "approval": "Required"}},
			"spec", "rollout", "waves"))
		return withApprovals(t, b, approvals...)
	}
	wantRefused(t, author.Create(t.Context(), gated(approvalBy("author", "prod"))), "user author "+verb+workspace)
	wantRefused(t, author.Create(t.Context(), gated(approvalBy("reviewer", "prod"))), inTheName+" reviewer")
	made := gated()
	wantTaken(t, author.Create(t.Context(), made))
	patch := func(user, by, more string) error {
		return h.as(t, user).Patch(t.Context(), gated(), merge(
			`{"spec":{%s"approvals":[{"wave":"prod","revision":"%s","approvedBy":"%s"}]}}`, more, approvedRevision, by))
	}
	wantRefused(t, patch("author", "author", ""), "user author "+verb)
	wantRefused(t, patch("author", "reviewer", ""), inTheName+" reviewer")
	wantRefused(t, patch("planapprover", "planapprover", ""), "user planapprover "+verb)
	wantRefused(t, patch("reviewer", "author", ""), inTheName+" author")
	wantRefused(t, patch("reviewer", "reviewer", `"drift":"Report",`),
		"user reviewer cannot bind roletemplates cluster-viewer")
	wantRefused(t, patch("reviewer", "reviewer", `"clusterName":null,"clusterSelector":{},`), "user reviewer cannot bind")
	wantRefused(t, patch("reviewer", "reviewer", `"rollout":null,`), "user reviewer cannot bind")
	wantTaken(t, patch("reviewer", "reviewer", ""))
	copied := gated(approvalBy("reviewer", "prod"))
	copied.SetName("copy")
	wantRefused(t, author.Create(t.Context(), copied), inTheName+" reviewer")
	wantTaken(t, author.Patch(t.Context(), gated(), merge(`{"spec":{"drift":"Report"}}`)))
	wantTaken(t, reviewer.Patch(t.Context(), gated(), merge(`{"spec":{"approvals":null}}`)))
}
