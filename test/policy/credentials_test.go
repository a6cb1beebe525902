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

// testSecretsOfClusterAPI checks who may write the kubeconfigs that Cluster API finds. Cluster API sends the token of
// its own account to the server that a kubeconfig names. So editors and administrators of a workspace may not write
// them. Only Cluster API's own controllers may.
func testSecretsOfClusterAPI(t *testing.T, h *fixture) {
	workspace := h.Workspace(t)
	editor, admin := h.people(t, workspace)
	secrets := may("secrets", "get", "list", "watch", "create", "update", "patch", "delete")
	read := rbacv1.PolicyRule{APIGroups: []string{"cluster.x-k8s.io"}, Resources: []string{"clusters"}, Verbs: []string{"get", "list", "watch"}}
	const account = "system:serviceaccount:"
	h.allow(t, account+"capi-kubeadm-control-plane-system:capi-kubeadm-control-plane-manager", "", secrets, read)
	h.allow(t, account+"external-secrets:external-secrets", "", secrets)
	h.allow(t, "owner", workspace, secrets, read)
	h.allow(t, "credentialed", workspace, secrets, may("clusters/credentials", "update"))
	provider := h.as(t, account+"capi-kubeadm-control-plane-system:capi-kubeadm-control-plane-manager")
	refused := map[string]client.Client{
		"an editor": editor, "an administrator of the workspace": admin, "a controller that writes the Secrets of others": h.as(t, account+"external-secrets:external-secrets"),
		"a user who may do so in one namespace": h.as(t, "owner"),
	}
	const label = "cluster.x-k8s.io/cluster-name: prod"
	try := func(name string, write func(client.Client) error) {
		t.Run(name, func(t *testing.T) {
			for who, c := range refused {
				t.Run(who, func(t *testing.T) {
					wantRefused(t, write(c), "cannot update clusters/credentials in namespace "+workspace)
				})
			}
			for _, c := range []client.Client{provider, h.as(t, "credentialed")} {
				wantTaken(t, write(c))
			}
		})
	}
	for name, made := range map[string]*unstructured.Unstructured{
		"a kubeconfig by its name":     named(t, workspace, "next-kubeconfig", "", ""),
		"a kubeconfig of Cluster API":  named(t, workspace, "next-kubeconfig", label, "cluster.x-k8s.io/secret"),
		"bootstrap data by its type":   named(t, workspace, "next-7xk2m", "", "cluster.x-k8s.io/secret"),
		"the key of a CA by its label": named(t, workspace, "next-ca", label, "Opaque"),
	} {
		try("making "+name, func(c client.Client) error { return c.Create(t.Context(), made.DeepCopy(), client.DryRunAll) })
	}
	for name, there := range map[string]*unstructured.Unstructured{
		"Drover's kubeconfig":       named(t, workspace, "prod-kubeconfig", label+", cluster.drover.dev/secret: kubeconfig", ""),
		"a kubeconfig of a cloud":   named(t, workspace, "cloud-kubeconfig", "cluster.x-k8s.io/cluster-name: cloud", "cluster.x-k8s.io/secret"),
		"a kubeconfig of no labels": named(t, workspace, "bare-kubeconfig", "", ""),
		"bootstrap data":            named(t, workspace, "prod-8sn4q", label, "cluster.x-k8s.io/secret"),
	} {
		h.Apply(t, there)
		for what, patch := range map[string]string{
			"leading to another server": `{"stringData":{"value":"mine"}}`, "without labels": `{"metadata":{"labels":null}}`, "without content": `{"data":null}`,
			"with an owner that is gone": `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"none","uid":"none"}]}}`,
		} {
			if name == "Drover's kubeconfig" && what == "without labels" {
				what += " of Drover"
			}
			try(name+" "+what, func(c client.Client) error {
				return c.Patch(t.Context(), there.DeepCopy(), merge("%s", patch), client.DryRunAll)
			})
		}
		try(name+" that goes", func(c client.Client) error { return c.Delete(t.Context(), there.DeepCopy(), client.DryRunAll) })
	}
	t.Run("a Secret with another key is no kubeconfig of Cluster API", func(t *testing.T) {
		own := object(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: %s, name: laptop-kubeconfig}, stringData: {kubeconfig: mine}}", workspace))
		wantTaken(t, editor.Create(t.Context(), own))
		wantTaken(t, editor.Patch(t.Context(), own.DeepCopy(), merge(`{"stringData":{"kubeconfig":"next"}}`), client.DryRunAll))
		wantRefused(t, editor.Patch(t.Context(), own.DeepCopy(), merge(`{"stringData":{"value":"mine"}}`), client.DryRunAll), "cannot update clusters/credentials")
		wantTaken(t, editor.Delete(t.Context(), own))
	})
	t.Run("the manager", func(t *testing.T) {
		made := named(t, workspace, "none-kubeconfig", "cluster.x-k8s.io/cluster-name: none, cluster.drover.dev/secret: kubeconfig", "")
		wantRefused(t, h.manager(t).Create(t.Context(), made, client.DryRunAll), "denied request")
	})
}
