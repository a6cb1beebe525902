// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// baselineOf is a Baseline with one manifest of the given kind, which uses the template cluster-viewer.
func baselineOf(t *testing.T, namespace, name, manifest string) *unstructured.Unstructured {
	t.Helper()
	return object(t, fmt.Sprintf("{kind: Baseline, metadata: {name: %s, namespace: %s}, spec: {clusterName: a, "+
		"roleTemplateName: cluster-viewer, manifests: [{apiVersion: v1, kind: %s, metadata: {name: a, namespace: b}}]}}",
		name, namespace, manifest))
}

// testBaseline: a Baseline acts with the rights of a role template, so its author must be able to bind the template.
func testBaseline(t *testing.T, h *fixture) {
	workspace := h.Workspace(t)
	write := may("baselines", "get", "create", "update")
	bind := may("roletemplates", "bind")
	bind.ResourceNames = []string{"cluster-viewer"}
	h.allow(t, "baseauthor", workspace, write, bind)
	h.allow(t, "basewriter", workspace, write)
	author, writer := h.as(t, "baseauthor"), h.as(t, "basewriter")
	refusal := "user basewriter cannot bind roletemplates cluster-viewer in namespace " + workspace
	wantRefused(t, writer.Create(t.Context(), baselineOf(t, workspace, "x", "ConfigMap")), refusal)
	for _, kind := range []string{"Secret", "SecretList", "List"} {
		err := author.Create(t.Context(), baselineOf(t, workspace, "x", kind))
		wantRefused(t, err, "a Secret or List does not belong in manifests")
	}
	b := baselineOf(t, workspace, "x", "ConfigMap")
	wantTaken(t, author.Create(t.Context(), b))
	for _, field := range [][]string{{"spec", "paused"}, {"spec", "revision"}, {"spec", "roleTemplateName"}} {
		changed := b.DeepCopy()
		value := map[string]any{"paused": true, "revision": "0123456789abcdef", "roleTemplateName": "cluster-owner"}[field[1]]
		wantTaken(t, unstructured.SetNestedField(changed.Object, value, field...))
		wantRefused(t, writer.Update(t.Context(), changed, client.DryRunAll), "user basewriter cannot bind roletemplates")
		if field[1] == "roleTemplateName" {
			wantRefused(t, author.Update(t.Context(), changed, client.DryRunAll), "cannot bind roletemplates cluster-owner")
		} else {
			wantTaken(t, author.Update(t.Context(), changed, client.DryRunAll))
		}
	}
	b.SetLabels(map[string]string{"a": "b"})
	wantTaken(t, writer.Update(t.Context(), b))
}

// testBaselineSource: a user who changes a source decides what a Baseline of another user applies.
func testBaselineSource(t *testing.T, h *fixture) {
	workspace := h.Workspace(t)
	verbs := []string{"create", "update", "patch", "delete"}
	configMaps := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: verbs}
	secrets := may("secrets", verbs...)
	h.allow(t, "sourceeditor", workspace, configMaps, secrets)
	h.allow(t, "sourceowner", workspace, configMaps, secrets, may("baselines/sources", "update"))
	editor, owner := h.as(t, "sourceeditor"), h.as(t, "sourceowner")
	const use, none = `{"metadata":{"labels":{"baselines.cluster.drover.dev/use":"true"}}}`,
		`{"metadata":{"labels":{"baselines.cluster.drover.dev/use":null}}}`
	for _, kind := range []string{"ConfigMap", "Secret"} {
		t.Run(kind, func(t *testing.T) {
			refusal := "user sourceeditor cannot update baselines/sources in namespace " + workspace
			labelled := func(name string) *unstructured.Unstructured {
				return object(t, fmt.Sprintf("{apiVersion: v1, kind: %s, metadata: {name: %s, namespace: %s, labels: "+
					"{baselines.cluster.drover.dev/use: 'true'}}}", kind, name, workspace))
			}
			wantRefused(t, editor.Create(t.Context(), labelled("x")), refusal)
			wantTaken(t, owner.Create(t.Context(), labelled("x")))
			change := merge(`{"data":{"a":"YQ=="}}`)
			wantRefused(t, editor.Patch(t.Context(), labelled("x"), change), refusal)
			wantRefused(t, editor.Patch(t.Context(), labelled("x"), merge("%s", none)), refusal)
			wantRefused(t, editor.Delete(t.Context(), labelled("x")), refusal)
			wantTaken(t, owner.Patch(t.Context(), labelled("x"), change))
			plain := object(t, fmt.Sprintf("{apiVersion: v1, kind: %s, metadata: {name: plain, namespace: %s}}",
				kind, workspace))
			wantTaken(t, editor.Create(t.Context(), plain))
			wantRefused(t, editor.Patch(t.Context(), plain.DeepCopy(), merge("%s", use)), refusal)
			if kind == "Secret" {
				err := owner.Patch(t.Context(), plain.DeepCopy(), merge("%s", use))
				wantRefused(t, err, "user sourceowner cannot get secrets plain")
			} else {
				wantTaken(t, owner.Patch(t.Context(), plain.DeepCopy(), merge("%s", use)))
			}
		})
	}
}

// testBaselineRevision: a user who changes a stored revision decides what members get after a rollback.
func testBaselineRevision(t *testing.T, h *fixture) {
	workspace := h.Workspace(t)
	secrets := may("secrets", "create", "update", "patch", "delete", "deletecollection")
	h.allow(t, "revisioneditor", workspace, secrets)
	h.allow(t, "revisionowner", workspace, secrets, may("baselines/sources", "update"))
	editor, owner, manager := h.as(t, "revisioneditor"), h.as(t, "revisionowner"), h.manager(t)
	revision := func() *unstructured.Unstructured {
		return object(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: base-revision-0, namespace: %s, "+
			"labels: {cluster.drover.dev/secret: baseline, cluster.drover.dev/baseline: base}}, type: Opaque}", workspace))
	}
	refusal := "user revisioneditor cannot update baselines/sources in namespace " + workspace
	wantRefused(t, editor.Create(t.Context(), revision()), refusal)
	wantTaken(t, manager.Create(t.Context(), revision()))
	change := merge(`{"data":{"role":"YQ=="}}`)
	wantRefused(t, editor.Patch(t.Context(), revision(), change), refusal)
	wantRefused(t, editor.Patch(t.Context(), revision(), merge(`{"metadata":{"labels":null}}`)), refusal)
	wantRefused(t, editor.Delete(t.Context(), revision()), refusal)
	wantTaken(t, owner.Patch(t.Context(), revision(), change))
	changed := revision()
	wantTaken(t, h.Client.Get(t.Context(), client.ObjectKeyFromObject(changed), changed))
	wantTaken(t, unstructured.SetNestedField(changed.Object, "Yg==", "data", "role"))
	wantTaken(t, manager.Update(t.Context(), changed))
	wantTaken(t, h.as(t, "system:serviceaccount:kube-system:generic-garbage-collector").Delete(t.Context(), revision()))
}
