// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/test/testkit"
)

// keyNames are the name suffixes by which Cluster API finds the keys of a cluster.
var keyNames = []string{"-ca", "-etcd", "-proxy", "-sa", "-apiserver-etcd-client"}

// testClusterAPINames checks that with config/clusterapi, a user without a separate right can neither write a Secret
// that Cluster API finds by its name as a cluster's key, nor make a bootstrap provider write a Secret that is found by
// its name.
func testClusterAPINames(t *testing.T, h *fixture) {
	workspace := h.Workspace(t)
	editor, admin := h.people(t, workspace)
	const account = "system:serviceaccount:"
	secrets := may("secrets", "create", "update", "patch", "delete")
	configs := rbacv1.PolicyRule{APIGroups: []string{"bootstrap.cluster.x-k8s.io"}, Resources: []string{"kubeadmconfigs"}, Verbs: []string{"create", "update", "patch"}}
	read := rbacv1.PolicyRule{APIGroups: []string{"cluster.x-k8s.io"}, Resources: []string{"clusters"}, Verbs: []string{"get", "list", "watch"}}
	h.allow(t, account+"cluster-api:kcp", "", secrets, read, configs)
	h.allow(t, account+"cert-manager:cert-manager", "", secrets)
	h.allow(t, "keeper", workspace, secrets, configs, may("clusters/credentials", "update"))
	h.allow(t, "editor-of-"+workspace, workspace, configs)
	provider, keeper, deputy := h.as(t, account+"cluster-api:kcp"), h.as(t, "keeper"), h.as(t, account+"cert-manager:cert-manager")
	secret := func(namespace, name, key string) *unstructured.Unstructured {
		return object(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: %s, name: %s}, stringData: {%s: theirs}}", namespace, name, key))
	}
	config := func(name string) *unstructured.Unstructured {
		return object(t, fmt.Sprintf("{apiVersion: bootstrap.cluster.x-k8s.io/v1beta2, kind: KubeadmConfig, metadata: {namespace: %s, name: %s}, spec: {}}", workspace, name))
	}
	for _, probe := range []*unstructured.Unstructured{secret(workspace, "probe-ca", "tls.key"), config("probe-ca")} {
		testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error { // the API server learns of the policy a moment after it is made
			if err := editor.Create(ctx, probe.DeepCopy(), client.DryRunAll); err == nil {
				return errors.New("the policy is not in force")
			}
			return nil
		})
	}
	refusal := "cannot update clusters/credentials in namespace " + workspace
	for _, end := range keyNames {
		t.Run(end, func(t *testing.T) {
			for _, key := range []string{"tls.key", "tls.crt"} {
				for _, c := range []client.Client{editor, admin, deputy} {
					wantRefused(t, c.Create(t.Context(), secret(workspace, "m1"+end, key), client.DryRunAll), refusal)
				}
				for _, c := range []client.Client{provider, keeper} {
					wantTaken(t, c.Create(t.Context(), secret(workspace, "m1"+end, key), client.DryRunAll))
				}
			}
			wantTaken(t, editor.Create(t.Context(), secret(workspace, "m1"+end, "config"), client.DryRunAll))
			there := secret(workspace, "there"+end, "tls.key")
			h.Apply(t, there)
			wantRefused(t, editor.Patch(t.Context(), there.DeepCopy(), merge(`{"stringData":{"tls.key":"mine"}}`), client.DryRunAll), refusal)
			wantRefused(t, editor.Patch(t.Context(), there.DeepCopy(), merge(`{"data":null}`), client.DryRunAll), refusal)
			wantRefused(t, editor.Delete(t.Context(), there.DeepCopy(), client.DryRunAll), refusal)
			wantTaken(t, provider.Delete(t.Context(), there.DeepCopy(), client.DryRunAll))
			bare := secret(workspace, "bare"+end, "config")
			h.Apply(t, bare)
			wantRefused(t, editor.Patch(t.Context(), bare.DeepCopy(), merge(`{"stringData":{"tls.key":"mine"}}`), client.DryRunAll), refusal)
		})
	}
	t.Run("other names", func(t *testing.T) {
		for _, name := range []string{"ca", "web-tls", "camera", "ca-web"} {
			wantTaken(t, editor.Create(t.Context(), secret(workspace, name, "tls.key"), client.DryRunAll))
		}
	})
	t.Run("a namespace that an administrator has left out", func(t *testing.T) {
		other := h.Workspace(t)
		ns := object(t, fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", other))
		wantTaken(t, h.Client.Patch(t.Context(), ns, merge(`{"metadata":{"labels":{"cluster.drover.dev/cluster-keys":"none"}}}`)))
		testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error {
			return deputy.Create(ctx, secret(other, "root-ca", "tls.key"), client.DryRunAll)
		})
	})
	for _, end := range slices.Concat(keyNames, slices.Sorted(maps.Keys(guardedNames))) {
		t.Run("a KubeadmConfig that ends in "+end, func(t *testing.T) {
			for _, c := range []client.Client{editor, provider} {
				wantRefused(t, c.Create(t.Context(), config("m1"+end), client.DryRunAll), refusal)
			}
			wantTaken(t, keeper.Create(t.Context(), config("m1"+end), client.DryRunAll))
		})
	}
	wantTaken(t, editor.Create(t.Context(), config("m1-kubeconfig-x7k2m"), client.DryRunAll))
}
