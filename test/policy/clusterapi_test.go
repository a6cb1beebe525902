// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/test/testkit"
)

// testClusterAPI: the manager pauses Clusters of Cluster API and goes on with them. A compromised manager does not change what they are made of.
func testClusterAPI(t *testing.T, h *fixture) {
	h.ClusterAPI(t)
	for _, o := range manifests(t, "config/clusterapi") {
		if o.GetKind() != "Kustomization" {
			h.Apply(t, o)
		}
	}
	h.AwaitRights(t, managerUser(t), h.workspace, rbacv1.PolicyRule{APIGroups: []string{"cluster.x-k8s.io"}, Resources: []string{"clusters"}, Verbs: []string{"patch"}})
	o := object(t, fmt.Sprintf("{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {namespace: %s, name: web, labels: {a: b}, annotations: {c: d}}, spec: {infrastructureRef: {name: web}}}", h.workspace))
	h.Apply(t, o)
	manager := h.manager(t)
	t.Run("it writes the kubeconfig that Cluster API reads", func(t *testing.T) {
		made := named(t, h.workspace, "web-kubeconfig", "cluster.x-k8s.io/cluster-name: web, cluster.drover.dev/secret: kubeconfig", "")
		wantTaken(t, manager.Create(t.Context(), made))
		wantTaken(t, manager.Patch(t.Context(), made.DeepCopy(), merge(`{"stringData":{"value":"next"}}`), client.DryRunAll))
	})
	patch := func(text string) error {
		return manager.Patch(t.Context(), o.DeepCopyObject().(client.Object), merge("%s", text), client.DryRunAll)
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
