// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
)

// guardedNames are the suffixes of the names by which Secrets of a workspace are found, each with the right that the
// policy requires for writing such a Secret. TestEverySecretThatIsFoundByNameIsGuarded compares them with the code.
var guardedNames = map[string]guardedName{
	v1.RegistrationSecretSuffix:     {"delete clusters/agent m1", "cluster.drover.dev/secret: registration, cluster.drover.dev/cluster: m1", ""},
	v1.AgentSecretSuffix:            {"delete clusters/agent m1", "cluster.drover.dev/secret: agent, cluster.drover.dev/cluster: m1", ""},
	v1.HostJoinSecretSuffix:         {"update hosts/instructions m1", "cluster.drover.dev/secret: host-join, cluster.drover.dev/host: m1", ""},
	v1.HostAgentSecretSuffix:        {"update hosts/instructions m1", "cluster.drover.dev/secret: host-identity, cluster.drover.dev/host: m1", ""},
	v1.HostInstructionsSecretSuffix: {"update hosts/instructions m1", "cluster.drover.dev/secret: host-plan, cluster.drover.dev/host: m1", "cluster.drover.dev/host-plan"},
	provisionv1.SecretSuffix:        {"update hosts/instructions", "cluster.drover.dev/secret: provision, provision.cluster.drover.dev/installation: m1", ""},
	infrav1.KubeconfigSecretSuffix:  {"update clusters/credentials", "cluster.drover.dev/secret: kubeconfig, cluster.x-k8s.io/cluster-name: m1", ""},
}

// guardedName describes the right that a Secret with such a name requires, and what Drover's own Secret has in addition
// to the name.
type guardedName struct{ right, labels, secretType string }

// named returns a Secret that has a key of each kind.
func named(t *testing.T, namespace, name, labels, secretType string) *unstructured.Unstructured {
	t.Helper()
	if secretType == "" {
		secretType = "Opaque"
	}
	return object(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, type: %s, metadata: {namespace: %s, name: %s, labels: {%s}}, "+
		"stringData: {command: theirs, manifest.yaml: theirs, public-key: theirs, plan.json: '{}', value: theirs}}", secretType, namespace, name, labels))
}

// people returns an editor and an administrator of a namespace, with the roles that Kubernetes and Drover ship.
// Kubernetes' own roles edit and admin are aggregated from these roles by a controller that does not run here.
func (h *fixture) people(t *testing.T, namespace string) (editor, admin client.Client) {
	t.Helper()
	for user, roles := range map[string][]string{
		"editor-of-" + namespace: {"system:aggregate-to-edit", "drover-workspace-editor"},
		"admin-of-" + namespace:  {"system:aggregate-to-edit", "system:aggregate-to-admin", "drover-workspace-admin"},
	} {
		for i, role := range roles {
			h.Apply(t, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s-%d", user, i)},
				RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
				Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}})
		}
		h.AwaitRights(t, user, namespace, may("secrets", "create", "update", "patch", "delete"), may("clusters", "create"))
	}
	h.AwaitRights(t, "admin-of-"+namespace, namespace, may("hosts/instructions", "update"), may("clusters/agent", "delete"))
	return h.as(t, "editor-of-"+namespace), h.as(t, "admin-of-"+namespace)
}

// testSecretsByName checks that an editor may write Secrets, except those whose name makes Drover or Cluster API use
// them.
func testSecretsByName(t *testing.T, h *fixture) {
	workspace := h.Workspace(t)
	editor, admin := h.people(t, workspace)
	for suffix, guarded := range guardedNames {
		refusal := fmt.Sprintf("user editor-of-%s cannot %s in namespace %s: Secret", workspace, guarded.right, workspace)
		adminsToo := suffix != infrav1.KubeconfigSecretSuffix // its writer receives the token of Cluster API, which is good in all workspaces
		try := func(t *testing.T, what string, write func(client.Client) error) {
			t.Helper()
			t.Run(what, func(t *testing.T) {
				wantRefused(t, write(editor), refusal)
				if adminsToo {
					wantTaken(t, write(admin))
				} else {
					wantRefused(t, write(admin), guarded.right)
				}
			})
		}
		t.Run(suffix, func(t *testing.T) {
			for what, labels := range map[string]string{"one without labels": "", "one of an application": "app: build", "one that looks like Drover's": guarded.labels} {
				secretType := ""
				if labels == guarded.labels {
					secretType = guarded.secretType
				}
				try(t, "making "+what, func(c client.Client) error {
					return c.Create(t.Context(), named(t, workspace, "m1"+suffix, labels, secretType), client.DryRunAll)
				})
			}
			ours := named(t, workspace, "m1"+suffix, guarded.labels, guarded.secretType)
			h.Apply(t, ours)
			for what, patch := range map[string]string{
				"another content": `{"stringData":{"command":"mine","manifest.yaml":"mine","public-key":"mine","plan.json":"{\"files\":[]}","value":"mine"}}`,
				"an owner":        `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"none","uid":"none"}]}}`,
			} {
				try(t, "changing it to "+what, func(c client.Client) error {
					return c.Patch(t.Context(), ours.DeepCopy(), merge("%s", patch), client.DryRunAll)
				})
			}
			if suffix != v1.RegistrationSecretSuffix { // until an agent has joined, editors may delete that for a new token
				try(t, "deleting it", func(c client.Client) error { return c.Delete(t.Context(), ours.DeepCopy(), client.DryRunAll) })
			}
			if guarded.secretType == "" {
				t.Run("taking its labels away", func(t *testing.T) {
					wantRefused(t, editor.Patch(t.Context(), ours.DeepCopy(), merge(`{"metadata":{"labels":null}}`), client.DryRunAll), refusal)
				})
			}
		})
	}
	t.Run("a registration that an editor deletes for a new token, and makes without labels", func(t *testing.T) {
		wantTaken(t, editor.Delete(t.Context(), named(t, workspace, "m1-registration", "", "")))
		wantRefused(t, editor.Create(t.Context(), named(t, workspace, "m1-registration", "", "")), "or choose a name that does not end in -registration")
	})
	t.Run("an application's Secret that was there before the policy is still written and deleted by its editors", func(t *testing.T) {
		for _, name := range []string{"old-agent", "old-registration", "old-host-plan", "old-provision"} {
			before := named(t, workspace, name, "app: build", "")
			h.Apply(t, before)
			wantTaken(t, editor.Patch(t.Context(), before.DeepCopy(), merge(`{"stringData":{"command":"next"}}`), client.DryRunAll))
			wantTaken(t, editor.Delete(t.Context(), before.DeepCopy(), client.DryRunAll))
		}
	})
	t.Run("other Secrets are the editor's", func(t *testing.T) {
		for _, name := range []string{"agent", "build-agents", "agent-token", "registration", "x-plan", "kubeconfig"} {
			wantTaken(t, editor.Create(t.Context(), named(t, workspace, name, "app: build", ""), client.DryRunAll))
		}
	})
	t.Run("an editor who was given the right for one name makes that one", func(t *testing.T) {
		rule := may("clusters/agent", "delete")
		rule.ResourceNames = []string{"build"}
		h.allow(t, "builder", workspace, may("secrets", "create"), rule)
		wantTaken(t, h.as(t, "builder").Create(t.Context(), named(t, workspace, "build-agent", "app: build", ""), client.DryRunAll))
		wantRefused(t, h.as(t, "builder").Create(t.Context(), named(t, workspace, "m1-agent", "app: build", ""), client.DryRunAll), "cannot delete clusters/agent m1")
	})
}
