// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// hostPlan is the Secret with the plan of a Host.
func hostPlan(t *testing.T, namespace, host string) *unstructured.Unstructured {
	t.Helper()
	return object(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, type: cluster.drover.dev/host-plan, metadata: {namespace: %s, name: %s-host-plan, "+
		"labels: {cluster.drover.dev/secret: host-plan, cluster.drover.dev/host: %s}}, stringData: {plan.json: '{}'}}", namespace, host, host))
}

// testHostPlan: a plan is root on a machine, so the right to write Secrets, which editors of a workspace have, makes none.
func testHostPlan(t *testing.T, h *fixture) {
	refusalOf := func(host string) string { return "cannot update hosts/plan " + host }
	refusal := refusalOf("m1")
	h.allow(t, "hana", h.workspace, may("secrets", "create", "update", "patch"))
	h.allow(t, "hugo", h.workspace, may("secrets", "create", "update", "patch"), may("hosts/plan", "update"))
	writer, holder := h.as(t, "hana"), h.as(t, "hugo")
	wantRefused(t, writer.Create(t.Context(), hostPlan(t, h.workspace, "m1"), client.DryRunAll), refusal)
	wantTaken(t, holder.Create(t.Context(), hostPlan(t, h.workspace, "m1")))
	for name, patch := range map[string]string{
		"another plan":  `{"stringData":{"plan.json":"{\"files\":[]}"}}`,
		"another label": `{"metadata":{"labels":{"a":"b"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			wantRefused(t, writer.Patch(t.Context(), hostPlan(t, h.workspace, "m1"), merge("%s", patch), client.DryRunAll), refusal)
			wantTaken(t, holder.Patch(t.Context(), hostPlan(t, h.workspace, "m1"), merge("%s", patch), client.DryRunAll))
		})
	}
	t.Run("a name that is not that of its host", func(t *testing.T) {
		other := hostPlan(t, h.workspace, "m2")
		other.SetLabels(map[string]string{"cluster.drover.dev/secret": "host-plan", "cluster.drover.dev/host": "m1"})
		wantRefused(t, holder.Create(t.Context(), other, client.DryRunAll), "has the label cluster.drover.dev/host")
	})
	t.Run("a plan that the hub would not see", func(t *testing.T) {
		const unseen = "without which the hub does not see it"
		other := hostPlan(t, h.workspace, "m2")
		other.SetLabels(map[string]string{"cluster.drover.dev/host": "m2"})
		wantRefused(t, holder.Create(t.Context(), other, client.DryRunAll), unseen)
		for _, label := range []string{`null`, `"x"`} {
			wantRefused(t, holder.Patch(t.Context(), hostPlan(t, h.workspace, "m1"), merge(`{"metadata":{"labels":{"cluster.drover.dev/secret":%s}}}`, label), client.DryRunAll), unseen)
		}
	})
	t.Run("the right for one host is none for another", func(t *testing.T) {
		rule := may("hosts/plan", "update")
		rule.ResourceNames = []string{"m3"}
		h.allow(t, "hedy", h.workspace, may("secrets", "create"), rule)
		wantTaken(t, h.as(t, "hedy").Create(t.Context(), hostPlan(t, h.workspace, "m3"), client.DryRunAll))
		wantRefused(t, h.as(t, "hedy").Create(t.Context(), hostPlan(t, h.workspace, "m4"), client.DryRunAll), "cannot update hosts/plan m4")
	})
	t.Run("the manager makes none", func(t *testing.T) {
		wantRefused(t, h.manager(t).Create(t.Context(), hostPlan(t, h.workspace, "m5"), client.DryRunAll), refusalOf("m5"))
	})
	t.Run("a manager that makes clusters makes and deletes plans, and no other Secrets of the type", func(t *testing.T) {
		user := "system:serviceaccount:" + h.other + ":clusters-drover-manager"
		h.allow(t, user, h.workspace, may("secrets", "create", "update", "patch", "delete"), may("hosts/plan", "update"))
		maker, plan := h.as(t, user), hostPlan(t, h.workspace, "m6")
		wantTaken(t, maker.Create(t.Context(), plan))
		wantRefused(t, maker.Patch(t.Context(), plan.DeepCopy(), merge(`{"metadata":{"labels":{"cluster.drover.dev/secret":"agent"}}}`), client.DryRunAll), "denied request")
		wantRefused(t, maker.Patch(t.Context(), plan.DeepCopy(), merge(`{"metadata":{"labels":{"cluster.drover.dev/host":"m7"}}}`), client.DryRunAll), "denied request")
		wantTaken(t, maker.Delete(t.Context(), plan))
		for _, kubeconfig := range []string{"{cluster.x-k8s.io/cluster-name: prod, cluster.drover.dev/secret: kubeconfig}", "{cluster.drover.dev/secret: kubeconfig}"} {
			wantRefused(t, maker.Create(t.Context(), object(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: %s, name: x, labels: %s}}", h.workspace, kubeconfig)), client.DryRunAll), "writes Secrets of type Opaque only")
		}
	})
}
