// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func withOverrides(t *testing.T, plan *unstructured.Unstructured, overrides ...any) *unstructured.Unstructured {
	t.Helper()
	plan = plan.DeepCopy()
	if len(overrides) == 0 {
		unstructured.RemoveNestedField(plan.Object, "spec", "overrides")
		return plan
	}
	wantTaken(t, unstructured.SetNestedSlice(plan.Object, overrides, "spec", "overrides"))
	return plan
}

func withChecks(t *testing.T, plan *unstructured.Unstructured, policy string) *unstructured.Unstructured {
	t.Helper()
	plan = plan.DeepCopy()
	wantTaken(t, unstructured.SetNestedField(plan.Object, policy, "spec", "gates", "upgradeChecks"))
	return plan
}

func overrideBy(user, check string) map[string]any {
	return map[string]any{"check": check, "revision": approvedRevision, "overriddenBy": user,
		"reason": "it is replaced"}
}

// testOverride: an override takes the verb "override", a reason and the user's own name, however it comes into the
// Plan. Turning the checks off takes the same verb.
func testOverride(t *testing.T, h *fixture) {
	workspace := h.Workspace(t)
	all := may("plans", "get", "create", "update", "patch", "delete", "approve")
	runs := may("clusters", "run-plans")
	h.allow(t, "runner", workspace, all, runs)
	h.allow(t, "overrider", workspace, may("plans", "get", "update", "patch", "override"))
	h.allow(t, "chief", workspace, all, runs, may("plans", "override"))
	runner, overrider, chief := h.as(t, "runner"), h.as(t, "overrider"), h.as(t, "chief")
	const inTheName, verb = "cannot override checks in the name of", "cannot override plans k3s in namespace "
	dry := client.DryRunAll
	made := gatedPlan(t, workspace, "k3s")
	t.Run("a new Plan has only overrides of its creator", func(t *testing.T) {
		create := func(c client.Client, plan *unstructured.Unstructured) error { return c.Create(t.Context(), plan, dry) }
		wantRefused(t, create(runner, withOverrides(t, made, overrideBy("overrider", "NodesReady"))),
			"user runner "+inTheName+" overrider")
		wantRefused(t, create(runner, withOverrides(t, made, overrideBy("runner", "NodesReady"))),
			"user runner "+verb+workspace)
		wantRefused(t, create(chief, withOverrides(t, made, overrideBy("overrider", "NodesReady"))), inTheName+" overrider")
		wantTaken(t, create(chief, withOverrides(t, made, overrideBy("chief", "NodesReady"))))
		for _, policy := range []string{"Report", "Disabled"} {
			wantRefused(t, create(runner, withChecks(t, made, policy)), "user runner "+verb+workspace)
			wantTaken(t, create(chief, withChecks(t, made, policy)))
		}
		wantTaken(t, create(runner, withChecks(t, made, "Enforce")))
	})
	t.Run("an override says why", func(t *testing.T) {
		for name, reason := range map[string]any{"none": nil, "an empty text": "", "blanks": "  ", "two lines": "a\nb",
			"a long text": strings.Repeat("a", 257)} {
			entry := overrideBy("chief", "NodesReady")
			entry["reason"] = reason
			if reason == nil {
				delete(entry, "reason")
			}
			if err := chief.Create(t.Context(), withOverrides(t, made, entry), dry); err == nil ||
				!strings.Contains(err.Error(), "reason") {
				t.Errorf("an override with %s as its reason: %v, want that the reason is refused", name, err)
			}
		}
	})
	wantTaken(t, runner.Create(t.Context(), made))
	t.Run("overriding takes the verb, and no right to run plans", func(t *testing.T) {
		update := func(c client.Client, plan *unstructured.Unstructured) error { return c.Update(t.Context(), plan, dry) }
		wantRefused(t, update(runner, withOverrides(t, made, overrideBy("runner", "NodesReady"))), "user runner "+verb)
		wantRefused(t, update(runner, withChecks(t, made, "Disabled")), "user runner "+verb)
		wantRefused(t, update(overrider, withOverrides(t, made, overrideBy("chief", "NodesReady"))), inTheName+" chief")
		wantRefused(t, update(overrider, withOverrides(t, made, overrideBy("overrider", "NodesReady"),
			overrideBy("chief", "Certificates"))), inTheName+" chief")
		wantRefused(t, update(overrider, withChecks(t, made, "Disabled")), "user overrider cannot run-plans")
		made = withOverrides(t, made, overrideBy("overrider", "NodesReady"))
		wantTaken(t, overrider.Update(t.Context(), made))
	})
	t.Run("an override of another user cannot be changed, copied or restored", func(t *testing.T) {
		for name, change := range map[string]map[string]any{
			"another check":    {"check": "Certificates"},
			"another revision": {"revision": strings.Repeat("f", 56)},
			"another reason":   {"reason": "because"},
		} {
			changed := overrideBy("overrider", "NodesReady")
			maps.Copy(changed, change)
			t.Run(name, func(t *testing.T) {
				wantRefused(t, chief.Update(t.Context(), withOverrides(t, made, changed), dry), inTheName+" overrider")
			})
		}
		copied := withOverrides(t, gatedPlan(t, workspace, "copy"), overrideBy("overrider", "NodesReady"))
		wantRefused(t, chief.Create(t.Context(), copied), inTheName+" overrider")
		again := made.DeepCopy()
		wantTaken(t, runner.Delete(t.Context(), made))
		again.SetResourceVersion("")
		wantRefused(t, chief.Create(t.Context(), again), inTheName+" overrider")
		made = gatedPlan(t, workspace, "k3s")
		wantTaken(t, runner.Create(t.Context(), made))
	})
	t.Run("accounts of the system forge no override", func(t *testing.T) {
		patch := merge(`{"spec":{"overrides":[{"check":"NodesReady","revision":"%s","overriddenBy":"chief","reason":"a"}]}}`,
			approvedRevision)
		h.allow(t, managerUser(t), workspace, all) // as if its role were too wide
		wantRefused(t, h.manager(t).Patch(t.Context(), gatedPlan(t, workspace, "k3s"), patch, dry), inTheName+" chief")
		wantRefused(t, h.Client.Patch(t.Context(), gatedPlan(t, workspace, "k3s"), patch, dry), inTheName+" chief")
	})
	t.Run("others can write the Plan, turn the checks on and remove overrides", func(t *testing.T) {
		wantTaken(t, chief.Patch(t.Context(), gatedPlan(t, workspace, "k3s"), merge(
			`{"spec":{"overrides":[{"check":"NodesReady","revision":"%s","overriddenBy":"chief","reason":"a"}]}}`,
			approvedRevision)))
		disable := merge(`{"spec":{"gates":{"upgradeChecks":"Disabled"}}}`)
		wantTaken(t, chief.Patch(t.Context(), gatedPlan(t, workspace, "k3s"), disable))
		edit := merge(`{"spec":{"version":"v2"}}`)
		wantTaken(t, runner.Patch(t.Context(), gatedPlan(t, workspace, "k3s"), edit, dry))
		report := merge(`{"spec":{"gates":{"upgradeChecks":"Report"}}}`)
		wantRefused(t, runner.Patch(t.Context(), gatedPlan(t, workspace, "k3s"), report, dry), "user runner "+verb)
		wantTaken(t, runner.Patch(t.Context(), gatedPlan(t, workspace, "k3s"), merge(`{"spec":{"gates":null}}`), dry))
		h.allow(t, "stopper", workspace, may("plans", "get", "patch"))
		removal := merge(`{"spec":{"overrides":null}}`)
		wantTaken(t, h.as(t, "stopper").Patch(t.Context(), gatedPlan(t, workspace, "k3s"), removal, dry))
	})
	t.Run("a cluster's own Plan that gets members brings no override", func(t *testing.T) {
		h.plansNamespace(t)
		h.allow(t, "runner", "drover-plans", all, runs)
		own := object(t, "{kind: Plan, metadata: {namespace: drover-plans, name: own-override}, "+
			"spec: {version: v1, upgrade: {image: a}, gates: {upgradeChecks: Disabled}}}")
		own = withOverrides(t, own, overrideBy("overrider", "NodesReady"))
		wantTaken(t, runner.Create(t.Context(), own))
		wantTaken(t, unstructured.SetNestedMap(own.Object, map[string]any{}, "spec", "clusterSelector"))
		wantRefused(t, runner.Update(t.Context(), own, dry), inTheName+" overrider")
		wantRefused(t, runner.Update(t.Context(), withOverrides(t, own), dry), "cannot override plans own-override")
	})
}

// plansNamespace creates the namespace for a cluster's own Plans, which several tests use.
func (h *fixture) plansNamespace(t *testing.T) {
	t.Helper()
	namespace := object(t, "{apiVersion: v1, kind: Namespace, metadata: {name: drover-plans}}")
	wantTaken(t, client.IgnoreAlreadyExists(h.Client.Create(t.Context(), namespace)))
}
