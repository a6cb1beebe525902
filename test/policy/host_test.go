// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// hostInstructions is the Secret with the instructions of a Host.
func hostInstructions(t *testing.T, namespace, host string) *unstructured.Unstructured {
	t.Helper()
	return object(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, type: cluster.drover.dev/host-plan, metadata: {namespace: %s, name: %s-host-plan, "+
		"labels: {cluster.drover.dev/secret: host-plan, cluster.drover.dev/host: %s}}, stringData: {plan.json: '{}'}}", namespace, host, host))
}

// testHostInstructions: instructions are root on a machine, so the right to write Secrets, which editors of a workspace
// have, makes none.
func testHostInstructions(t *testing.T, h *fixture) {
	refusalOf := func(host string) string { return "cannot update hosts/instructions " + host }
	refusal := refusalOf("m1")
	h.allow(t, "hana", h.workspace, may("secrets", "create", "update", "patch"))
	h.allow(t, "hugo", h.workspace, may("secrets", "create", "update", "patch"), may("hosts/instructions", "update"))
	writer, holder := h.as(t, "hana"), h.as(t, "hugo")
	wantRefused(t, writer.Create(t.Context(), hostInstructions(t, h.workspace, "m1"), client.DryRunAll), refusal)
	wantTaken(t, holder.Create(t.Context(), hostInstructions(t, h.workspace, "m1")))
	for name, patch := range map[string]string{
		"other content": `{"stringData":{"plan.json":"{\"files\":[]}"}}`,
		"another label": `{"metadata":{"labels":{"a":"b"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			wantRefused(t, writer.Patch(t.Context(), hostInstructions(t, h.workspace, "m1"), merge("%s", patch), client.DryRunAll), refusal)
			wantTaken(t, holder.Patch(t.Context(), hostInstructions(t, h.workspace, "m1"), merge("%s", patch), client.DryRunAll))
		})
	}
	t.Run("a name that is not that of its host", func(t *testing.T) {
		other := hostInstructions(t, h.workspace, "m2")
		other.SetLabels(map[string]string{"cluster.drover.dev/secret": "host-plan", "cluster.drover.dev/host": "m1"})
		wantRefused(t, holder.Create(t.Context(), other, client.DryRunAll), "such a Secret must have the name")
	})
	t.Run("instructions that the hub would not see", func(t *testing.T) {
		const unseen = "such a Secret must have the name"
		other := hostInstructions(t, h.workspace, "m2")
		other.SetLabels(map[string]string{"cluster.drover.dev/host": "m2"})
		wantRefused(t, holder.Create(t.Context(), other, client.DryRunAll), unseen)
		for _, label := range []string{`null`, `"x"`} {
			wantRefused(t, holder.Patch(t.Context(), hostInstructions(t, h.workspace, "m1"), merge(`{"metadata":{"labels":{"cluster.drover.dev/secret":%s}}}`, label), client.DryRunAll), unseen)
		}
	})
	t.Run("the right for one host is none for another", func(t *testing.T) {
		rule := may("hosts/instructions", "update")
		rule.ResourceNames = []string{"m3"}
		h.allow(t, "hedy", h.workspace, may("secrets", "create"), rule)
		wantTaken(t, h.as(t, "hedy").Create(t.Context(), hostInstructions(t, h.workspace, "m3"), client.DryRunAll))
		wantRefused(t, h.as(t, "hedy").Create(t.Context(), hostInstructions(t, h.workspace, "m4"), client.DryRunAll), "cannot update hosts/instructions m4")
	})
	t.Run("the manager makes none", func(t *testing.T) {
		made := hostInstructions(t, h.workspace, "m5")
		wantRefused(t, h.manager(t).Create(t.Context(), made, client.DryRunAll), "denied request")
	})
	t.Run("a provisioner makes and deletes instructions, and no other Secrets of the type", func(t *testing.T) {
		user := "system:serviceaccount:" + h.other + ":clusters-drover-provisioner"
		h.allow(t, user, h.workspace, may("secrets", "create", "update", "patch", "delete"),
			may("hosts/instructions", "update"))
		maker, made := h.as(t, user), hostInstructions(t, h.workspace, "m6")
		wantTaken(t, maker.Create(t.Context(), made))
		wantRefused(t, maker.Patch(t.Context(), made.DeepCopy(), merge(`{"metadata":{"labels":{"cluster.drover.dev/secret":"agent"}}}`), client.DryRunAll), "denied request")
		wantRefused(t, maker.Patch(t.Context(), made.DeepCopy(), merge(`{"metadata":{"labels":{"cluster.drover.dev/host":"m7"}}}`), client.DryRunAll), "denied request")
		wantTaken(t, maker.Delete(t.Context(), made))
		for _, kubeconfig := range []string{"{cluster.x-k8s.io/cluster-name: prod, cluster.drover.dev/secret: kubeconfig}", "{cluster.drover.dev/secret: kubeconfig}"} {
			wantRefused(t, maker.Create(t.Context(), object(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: %s, name: x, labels: %s}}", h.workspace, kubeconfig)), client.DryRunAll), "denied request")
		}
	})
}

// testInstallationSecret checks that an editor cannot change the images that run on machines, nor the data that a
// ClusterInstallation stores about machines.
func testInstallationSecret(t *testing.T, h *fixture) {
	workspace := h.Workspace(t)
	secrets := may("secrets", "get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
	one := may("hosts/instructions", "update")
	one.ResourceNames = []string{"m1"}
	h.allow(t, "iris", workspace, secrets)
	h.allow(t, "ivan", workspace, secrets, may("hosts/instructions", "update"))
	h.allow(t, "ines", workspace, secrets, one)
	h.allow(t, "ines", h.other, may("hosts/instructions", "update"))
	made := func(name, labels string) *unstructured.Unstructured {
		return object(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, type: Opaque, metadata: {namespace: %s, name: %s, labels: {%s}}, stringData: {registries.yaml: ours}}", workspace, name, labels))
	}
	const use = "provision.cluster.drover.dev/use: 'true'"
	kinds := map[string]string{"registries": use, "prod-provision": "cluster.drover.dev/secret: provision, provision.cluster.drover.dev/installation: prod"}
	plain := made("mine", "provision.cluster.drover.dev/use: 'false'")
	h.Apply(t, plain)
	tries := map[string]func(client.Client) error{
		"a Secret that is made for it": func(c client.Client) error { return c.Create(t.Context(), made("new", use), client.DryRunAll) },
		"one that becomes such": func(c client.Client) error {
			return c.Patch(t.Context(), plain.DeepCopy(), merge(`{"metadata":{"labels":{"provision.cluster.drover.dev/use":"true"}}}`), client.DryRunAll)
		},
		"all Secrets at once": func(c client.Client) error {
			return c.DeleteAllOf(t.Context(), &corev1.Secret{}, client.InNamespace(workspace), client.DryRunAll)
		},
	}
	for name, labels := range kinds {
		secret := made(name, labels)
		h.Apply(t, secret)
		for what, patch := range map[string]string{"another content": `{"stringData":{"registries.yaml":"mine"}}`, "no labels": `{"metadata":{"labels":null}}`, "an owner": `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"none","uid":"none"}]}}`} {
			tries[name+" with "+what] = func(c client.Client) error {
				return c.Patch(t.Context(), secret.DeepCopy(), merge("%s", patch), client.DryRunAll)
			}
		}
		tries[name+" that goes"] = func(c client.Client) error { return c.Delete(t.Context(), secret.DeepCopy(), client.DryRunAll) }
	}
	for _, name := range slices.Sorted(maps.Keys(tries)) {
		t.Run(name, func(t *testing.T) {
			wantRefused(t, tries[name](h.as(t, "iris")), "user iris cannot update hosts/instructions in namespace "+workspace)
			wantRefused(t, tries[name](h.as(t, "ines")), "user ines cannot update hosts/instructions in namespace "+workspace)
			wantTaken(t, tries[name](h.as(t, "ivan")))
		})
	}
	t.Run("the Secret of another is free", func(t *testing.T) {
		wantTaken(t, h.as(t, "iris").Patch(t.Context(), plain.DeepCopy(), merge(`{"stringData":{"registries.yaml":"mine"}}`), client.DryRunAll))
		wantTaken(t, h.as(t, "iris").Delete(t.Context(), plain.DeepCopy(), client.DryRunAll))
	})
	t.Run("a provisioner stores what it has decided", func(t *testing.T) {
		user := "system:serviceaccount:" + h.other + ":provision-drover-provisioner"
		h.allow(t, user, workspace, may("secrets", "create", "update", "patch"), may("hosts/instructions", "update"))
		next := made("next-provision", "cluster.drover.dev/secret: provision, provision.cluster.drover.dev/installation: next")
		wantTaken(t, h.as(t, user).Create(t.Context(), next))
		wantTaken(t, h.as(t, user).Patch(t.Context(), next, merge(`{"stringData":{"state.json":"{}"}}`)))
	})
	for _, name := range cleaners {
		h.allow(t, name, workspace, secrets)
		wantTaken(t, h.as(t, name).DeleteAllOf(t.Context(), &corev1.Secret{}, client.InNamespace(workspace), client.DryRunAll))
	}
}
