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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/test/testkit"
)

// testEtcdSnapshots checks that the provisioner may create and delete the EtcdSnapshots of schedules, but not those of
// users.
func testEtcdSnapshots(t *testing.T, h *fixture) {
	h.Provision(t)
	h.AwaitRights(t, provisionerUser, h.workspace, rbacv1.PolicyRule{
		APIGroups: []string{"provision.cluster.drover.dev"}, Resources: []string{"etcdsnapshots"},
		Verbs: []string{"create", "delete"},
	})
	provisioner := h.provisioner(t)
	const label = "labels: {provision.cluster.drover.dev/scheduled: 'true'}, "
	owner := func(kind, group, name string, controller bool) string {
		return fmt.Sprintf("ownerReferences: [{apiVersion: %s/v1, kind: %s, name: %s, uid: u, controller: %t}]", group, kind, name, controller)
	}
	const infrastructure, refused = "infrastructure.cluster.drover.dev", "creates and deletes only the EtcdSnapshots of a DroverCluster's schedule"
	number := 0
	snapshot := func(meta, spec string) client.Object {
		number++
		return object(t, fmt.Sprintf("{apiVersion: provision.cluster.drover.dev/v1, kind: EtcdSnapshot, metadata: {namespace: %s, name: s%d, %s}, spec: {%s}}", h.workspace, number, meta, spec))
	}
	web := owner("DroverCluster", infrastructure, "web", true)
	testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error { // the API server learns of the policy a moment after it is made
		o := snapshot("", "clusterRef: {kind: DroverCluster, name: web}")
		if err := provisioner.Create(ctx, o, client.DryRunAll); !apierrors.IsForbidden(err) {
			return errors.New("the policy is not in force")
		}
		return nil
	})
	t.Run("one of a schedule", func(t *testing.T) {
		o := snapshot(label+web, "clusterRef: {kind: DroverCluster, name: web}")
		wantTaken(t, provisioner.Create(t.Context(), o))
		wantTaken(t, provisioner.Delete(t.Context(), o))
	})
	for name, o := range map[string]client.Object{
		"a user's":                   snapshot("", "clusterRef: {kind: DroverCluster, name: web}"),
		"one with the label alone":   snapshot(label, "clusterRef: {kind: DroverCluster, name: web}"),
		"one of no schedule":         snapshot(web, "clusterRef: {kind: DroverCluster, name: web}"),
		"one of another cluster":     snapshot(label+web, "clusterRef: {kind: DroverCluster, name: other}"),
		"one of an installation":     snapshot(label+web, "clusterRef: {kind: ClusterInstallation, name: web}"),
		"one that it does not own":   snapshot(label+owner("DroverCluster", infrastructure, "web", false), "clusterRef: {kind: DroverCluster, name: web}"),
		"one of another kind":        snapshot(label+owner("DroverMachine", infrastructure, "web", true), "clusterRef: {kind: DroverCluster, name: web}"),
		"one of a kind of that name": snapshot(label+owner("DroverCluster", "example.com", "web", true), "clusterRef: {kind: DroverCluster, name: web}"),
	} {
		t.Run(name, func(t *testing.T) {
			wantRefused(t, provisioner.Create(t.Context(), o, client.DryRunAll), refused)
			if err := h.Client.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			wantRefused(t, provisioner.Delete(t.Context(), o, client.DryRunAll), refused)
			if err := provisioner.Update(t.Context(), o); !apierrors.IsForbidden(err) {
				t.Errorf("update: %v, want it to have no right to", err)
			}
		})
	}
}
