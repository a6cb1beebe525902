// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/test/testkit"
)

// testClusterAPI checks that the provisioner can pause and resume Cluster API Clusters. A compromised provisioner
// cannot change anything else in them.
func testClusterAPI(t *testing.T, h *fixture) {
	h.ClusterAPI(t)
	h.deployProvisioner(t, "config/clusterapi")
	h.AwaitRights(t, provisionerUser, h.workspace, rbacv1.PolicyRule{
		APIGroups: []string{"cluster.x-k8s.io"}, Resources: []string{"clusters"}, Verbs: []string{"patch"},
	})
	o := object(t, fmt.Sprintf("{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {namespace: %s, name: web, labels: {a: b}, annotations: {c: d}}, spec: {infrastructureRef: {name: web}}}", h.workspace))
	h.Apply(t, o)
	provisioner := h.provisioner(t)
	t.Run("it writes the kubeconfig that Cluster API reads", func(t *testing.T) {
		made := named(t, h.workspace, "web-kubeconfig", "cluster.x-k8s.io/cluster-name: web, cluster.drover.dev/secret: kubeconfig", "")
		wantTaken(t, provisioner.Create(t.Context(), made))
		next := merge(`{"stringData":{"value":"next"}}`)
		wantTaken(t, provisioner.Patch(t.Context(), made.DeepCopy(), next, client.DryRunAll))
	})
	patch := func(text string) error {
		return provisioner.Patch(t.Context(), o.DeepCopyObject().(client.Object), merge("%s", text), client.DryRunAll)
	}
	testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error { // the API server learns of the policy a moment after it is made
		if err := patch(`{"spec":{"infrastructureRef":{"name":"other"}}}`); err == nil {
			return errors.New("the policy is not in force")
		}
		return nil
	})
	for name, text := range map[string]string{
		"it pauses one": `{"spec":{"paused":true},"metadata":{"annotations":{"cluster.drover.dev/paused-by":"u"}}}`, "it goes on with one": `{"spec":{"paused":null},"metadata":{"annotations":{"cluster.drover.dev/paused-by":null}}}`,
	} {
		t.Run(name, func(t *testing.T) { wantTaken(t, patch(text)) })
	}
	for name, text := range map[string]string{
		"other infrastructure": `{"spec":{"paused":true,"infrastructureRef":{"name":"other"}}}`, "more": `{"spec":{"topology":{"classRef":{"name":"x"}}}}`, "less": `{"spec":{"infrastructureRef":null}}`, "no spec": `{"spec":null}`,
		"a label": `{"metadata":{"labels":{"a":"c"}}}`, "an annotation": `{"metadata":{"annotations":{"c":"e"}}}`, "another annotation": `{"metadata":{"annotations":{"e":"f"}}}`, "a finalizer": `{"metadata":{"finalizers":["a.b/c"]}}`,
	} {
		t.Run(name, func(t *testing.T) { wantRefused(t, patch(text), "only pauses Clusters of Cluster API") })
	}
}

// testImport checks who can set the label on a Cluster API Cluster. With the label, the manager creates a Cluster,
// which is then selected by everything that selects Clusters of the workspace.
func testImport(t *testing.T, h *fixture) {
	h.ClusterAPI(t)
	h.deployProvisioner(t, "config/clusterapi/import")
	workspace := h.Workspace(t)
	editor, admin := h.people(t, workspace)
	write := rbacv1.PolicyRule{APIGroups: []string{"cluster.x-k8s.io"}, Resources: []string{"clusters"}, Verbs: []string{"create", "update", "patch"}}
	h.allow(t, "capi-user", workspace, write)
	h.allow(t, "editor-of-"+workspace, workspace, write)
	outsider := h.as(t, "capi-user")
	source := func(name, labels string) *unstructured.Unstructured {
		return object(t, fmt.Sprintf("{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {namespace: %s, name: %s, labels: {%s}}, spec: {}}", workspace, name, labels))
	}
	const label, refusal = `cluster.drover.dev/import: "true"`, "user capi-user cannot create clusters of cluster.drover.dev in namespace"
	testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error { // the API server learns of the policy a moment after it is made
		if err := outsider.Create(ctx, source("probe", label), client.DryRunAll); err == nil {
			return errors.New("the policy is not in force")
		}
		return nil
	})
	wantRefused(t, outsider.Create(t.Context(), source("theirs", label), client.DryRunAll), refusal)
	wantTaken(t, outsider.Create(t.Context(), source("theirs", "")))
	set := merge(`{"metadata":{"labels":{"cluster.drover.dev/import":"true"}}}`)
	wantRefused(t, outsider.Patch(t.Context(), source("theirs", ""), set, client.DryRunAll), refusal)
	wantTaken(t, editor.Patch(t.Context(), source("theirs", ""), set))
	wantTaken(t, outsider.Patch(t.Context(), source("theirs", ""), merge(`{"spec":{"paused":true}}`), client.DryRunAll))
	t.Run("a Cluster that was there before has its agent installed if an administrator says so", func(t *testing.T) {
		wantTaken(t, editor.Create(t.Context(), cluster(t, workspace, "before", "")))
		err := editor.Patch(t.Context(), cluster(t, workspace, "before", ""), set, client.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), "denied request") {
			t.Errorf("an editor has the agent installed elsewhere: %v, want a refusal", err)
		}
		wantTaken(t, admin.Patch(t.Context(), cluster(t, workspace, "before", ""), set, client.DryRunAll))
		made := cluster(t, workspace, "beside", ", labels: {"+label+"}")
		wantRefused(t, editor.Create(t.Context(), made.DeepCopy(), client.DryRunAll), "cannot delete clusters/agent beside")
		wantTaken(t, admin.Create(t.Context(), made, client.DryRunAll))
		h.AwaitRights(t, provisionerUser, workspace, may("clusters", "create"))
		source := ownedCluster(t, workspace, "theirs", "cluster.x-k8s.io/v1beta2", "theirs")
		source.SetLabels(map[string]string{"cluster.drover.dev/import": "true"})
		wantTaken(t, h.provisioner(t).Create(t.Context(), source, client.DryRunAll))
		selected := ownedCluster(t, workspace, "theirs", "cluster.x-k8s.io/v1beta2", "theirs") // by the Projects whose Secrets are sent to the Clusters that a label selects
		selected.SetLabels(map[string]string{"cluster.drover.dev/import": "true", "env": "prod"})
		wantRefused(t, h.provisioner(t).Create(t.Context(), selected, client.DryRunAll), "creates only the Clusters that it imports")
		wantRefused(t, admin.Create(t.Context(), cluster(t, workspace, "facts", ", labels: {"+label+", cluster.drover.dev/version: x}"), client.DryRunAll), "are facts from the agent")
	})
}
