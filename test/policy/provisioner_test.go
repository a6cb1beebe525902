// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// provisionerUser is the account of the provisioner in config/provision.
const provisionerUser = "system:serviceaccount:drover-system:drover-provisioner"

// provisioner acts as the provisioner, with the rights of its deployed roles.
func (h *fixture) provisioner(t *testing.T) client.Client { return h.as(t, provisionerUser) }

// deployProvisioner creates the provisioner's objects from a folder, without its Deployment.
func (h *fixture) deployProvisioner(t *testing.T, folder string) {
	t.Helper()
	for _, o := range manifests(t, folder) {
		if ofKubernetes(o) && o.GetKind() != "Deployment" {
			h.Apply(t, o)
		}
	}
	h.AwaitRights(t, provisionerUser, h.workspace, may("hosts", "patch"), may("hosts/instructions", "update"))
}

// bindProvisioner allows the provisioner to work in a namespace, as an administrator does.
func (h *fixture) bindProvisioner(t *testing.T, namespace string) {
	t.Helper()
	h.Apply(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "drover-provisioner"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "drover-provisioner-workspace"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "drover-system", Name: "drover-provisioner"}},
	})
	h.AwaitRights(t, provisionerUser, namespace, may("secrets", "get", "create", "patch", "delete"))
}

// testProvisioner checks the limits of a compromised provisioner. It is root on Hosts, which is its purpose. It can
// create neither a join token nor a ServiceAccount token, and cannot change Clusters. It can read Secrets only in
// namespaces where an administrator has allowed it to work.
func testProvisioner(t *testing.T, h *fixture) {
	provisioner, workspace := h.provisioner(t), h.Workspace(t)
	h.bindProvisioner(t, workspace)
	t.Run("it reads no Secret of another namespace", func(t *testing.T) {
		for _, namespace := range []string{"drover-system", "kube-system", h.other} {
			name := client.ObjectKey{Namespace: namespace, Name: "drover-ca"}
			if err := provisioner.Get(t.Context(), name, &corev1.Secret{}); !apierrors.IsForbidden(err) {
				t.Errorf("reading Secret %s gives %v, want Forbidden", name, err)
			}
		}
	})
	secret := func(name, labels, kind string) *unstructured.Unstructured {
		return object(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, type: %q, "+
			"metadata: {namespace: %s, name: %s, labels: {%s}}}", kind, workspace, name, labels))
	}
	const writes, deletes = "writes only the instructions of Hosts", "deletes only the Secrets with the instructions of Hosts"
	t.Run("instructions, and the tokens of an installation", func(t *testing.T) {
		made := hostInstructions(t, workspace, "m1")
		wantTaken(t, provisioner.Create(t.Context(), made))
		wantTaken(t, provisioner.Patch(t.Context(), made.DeepCopy(), merge(`{"stringData":{"plan.json":"{\"files\":[]}"}}`)))
		wantTaken(t, provisioner.Delete(t.Context(), made))
		made = secret("web-provision",
			"cluster.drover.dev/secret: provision, provision.cluster.drover.dev/installation: web", "Opaque")
		wantTaken(t, provisioner.Create(t.Context(), made))
		wantRefused(t, provisioner.Delete(t.Context(), made.DeepCopy()), deletes)
		labelled := merge(`{"metadata":{"labels":{"cluster.drover.dev/cluster":"web"}}}`)
		wantRefused(t, provisioner.Patch(t.Context(), made.DeepCopy(), labelled), writes)
	})
	for name, o := range map[string]client.Object{
		"a token of a ServiceAccount": secret("x", "}, annotations: {kubernetes.io/service-account.name: default",
			"kubernetes.io/service-account-token"),
		"a Secret without labels": secret("y-provision", "", "Opaque"),
		"a join token": secret("prod-registration",
			"cluster.drover.dev/cluster: prod, cluster.drover.dev/secret: registration", "Opaque"),
		"an agent's identity": secret("prod-agent",
			"cluster.drover.dev/cluster: prod, cluster.drover.dev/secret: agent", "Opaque"),
		"a host's join token": secret("m1-host-join",
			"cluster.drover.dev/host: m1, cluster.drover.dev/secret: host-join", "Opaque"),
		"a host's identity": secret("m1-host-identity",
			"cluster.drover.dev/host: m1, cluster.drover.dev/secret: host-identity", "Opaque"),
		"a session": secret("drover-session-0123456789abcdef0123456789abcdef",
			"cluster.drover.dev/secret: session", "Opaque"),
		"instructions of another name": secret("m2-host-plan",
			"cluster.drover.dev/host: m1, cluster.drover.dev/secret: host-plan", "cluster.drover.dev/host-plan"),
		"a kubeconfig, without the rights of config/clusterapi": secret("web-kubeconfig",
			"cluster.drover.dev/secret: kubeconfig, cluster.x-k8s.io/cluster-name: web", "Opaque"),
		"a Secret for a project": secret("for-web", "cluster.drover.dev/project: web", "Opaque"),
	} {
		t.Run(name, func(t *testing.T) {
			wantRefused(t, provisioner.Create(t.Context(), o, client.DryRunAll), "denied request")
		})
	}
	t.Run("it takes Hosts and changes nothing else of them", func(t *testing.T) {
		host := object(t, fmt.Sprintf("{kind: Host, metadata: {namespace: %s, name: m1, labels: {rack: a}}, "+
			"spec: {internalAddress: 10.0.0.1}}", workspace))
		h.Apply(t, host)
		for what, patch := range map[string]string{
			"taking it": `{"metadata":{"finalizers":["provision.cluster.drover.dev/node"]},` +
				`"spec":{"consumerRef":{"apiVersion":"a/v1","kind":"K","name":"n","uid":"u"}}}`,
			"giving it": `{"metadata":{"finalizers":null},"spec":{"consumerRef":null}}`,
		} {
			if err := provisioner.Patch(t.Context(), host.DeepCopy(), merge("%s", patch), client.DryRunAll); err != nil {
				t.Errorf("%s: %v, want it to be allowed", what, err)
			}
		}
		for what, patch := range map[string]string{
			"its address":   `{"spec":{"internalAddress":"10.0.0.2"}}`,
			"its policy":    `{"spec":{"deletionPolicy":"Orphan"}}`,
			"its spec":      `{"spec":null}`,
			"a label":       `{"metadata":{"labels":{"rack":"b"}}}`,
			"an annotation": `{"metadata":{"annotations":{"cluster.drover.dev/restored":"x"}}}`,
			"a finalizer":   `{"metadata":{"finalizers":["cluster.drover.dev/uninstall"]}}`,
		} {
			t.Run(what, func(t *testing.T) {
				err := provisioner.Patch(t.Context(), host.DeepCopy(), merge("%s", patch), client.DryRunAll)
				wantRefused(t, err, "denied request")
			})
		}
	})
	t.Run("an overlay that gives it another namespace and name leaves it its limits", func(t *testing.T) {
		user := "system:serviceaccount:" + h.other + ":acme-drover-provisioner-blue"
		h.allow(t, user, "", may("secrets", "create"), may("clusters", "create"), may("clusters/agent", "delete"))
		renamed := h.as(t, user)
		wantRefused(t, renamed.Create(t.Context(), secret("x", "", "Opaque"), client.DryRunAll), writes)
		for _, c := range []client.Object{
			cluster(t, h.workspace, "made", ""), ownedCluster(t, h.workspace, "made", "apps/v1", "made"),
			ownedCluster(t, h.workspace, "made", "cluster.x-k8s.io/v1beta2", "another"),
		} {
			wantRefused(t, renamed.Create(t.Context(), c, client.DryRunAll), "creates only the Clusters that it imports")
		}
		made := ownedCluster(t, h.workspace, "made", "cluster.x-k8s.io/v1beta2", "made")
		made.SetLabels(map[string]string{"cluster.drover.dev/import": "true"})
		wantTaken(t, renamed.Create(t.Context(), made, client.DryRunAll))
	})
}

// The manager and the provisioner have separate accounts, so that neither has the rights of the other.
func TestTheManagerHasNoRightsOfTheProvisioner(t *testing.T) {
	t.Parallel()
	rules := func(folder, kind string) (all []rbacv1.PolicyRule) {
		for _, o := range manifests(t, folder) {
			if o.GetKind() != kind || o.GetLabels()["cluster.x-k8s.io/aggregate-to-manager"] != "" {
				continue
			}
			role := &rbacv1.ClusterRole{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, role); err != nil {
				t.Fatal(err)
			}
			all = append(all, role.Rules...)
		}
		return all
	}
	has := func(rule rbacv1.PolicyRule, group, resource string, verbs ...string) bool {
		covers := func(list []string, want string) bool {
			return slices.Contains(list, want) || slices.Contains(list, "*")
		}
		return covers(rule.APIGroups, group) && covers(rule.Resources, resource) &&
			slices.ContainsFunc(verbs, func(verb string) bool { return covers(rule.Verbs, verb) })
	}
	manager := rules("config/rbac", "ClusterRole")
	if len(manager) < 5 {
		t.Fatalf("config/rbac has %d rules: the test does not read the manager's ClusterRole", len(manager))
	}
	for _, rule := range manager {
		for _, group := range append(rule.APIGroups, "") {
			theirs := []string{"infrastructure.cluster.drover.dev", "provision.cluster.drover.dev", "cluster.x-k8s.io"}
			if strings.HasSuffix(group, ".cluster.x-k8s.io") || slices.Contains(theirs, group) {
				t.Errorf("the manager has rights on %v of %s, want none: they are the provisioner's", rule.Resources, group)
			}
		}
		if has(rule, "cluster.drover.dev", "hosts/instructions", "update", "patch", "create", "delete") ||
			has(rule, "", "secrets", "delete", "deletecollection") {
			t.Errorf("the manager has %v, want neither hosts/instructions nor to delete Secrets of workspaces", rule)
		}
	}
	for _, rule := range rules("config/rbac", "Role") {
		if has(rule, "coordination.k8s.io", "leases", "update", "patch") && !slices.Equal(rule.ResourceNames, []string{"drover-manager"}) ||
			has(rule, "", "configmaps", "patch", "update") && !slices.Equal(rule.ResourceNames, []string{"drover-ca"}) {
			t.Errorf("the manager has %v in its namespace, want to write its own Lease and ConfigMap only", rule)
		}
	}
	for _, folder := range []string{"config/provision", "config/clusterapi", "config/clusterapi/import"} {
		for _, rule := range rules(folder, "ClusterRole") {
			if has(rule, "", "secrets", "list", "watch") || slices.Contains(rule.APIGroups, rbacv1.GroupName) ||
				has(rule, "cluster.drover.dev", "clusters/status", "update", "patch") {
				t.Errorf("%s gives the provisioner %v, want neither to list Secrets, nor the status of Clusters, nor roles",
					folder, rule)
			}
		}
		for _, o := range manifests(t, folder) {
			if role := fmt.Sprint(o.Object["roleRef"]); strings.Contains(role, "drover-provisioner-workspace") {
				t.Errorf("%s binds the rights on Secrets in %s %s, want administrators to bind them in workspaces", folder,
					o.GetKind(), o.GetName())
			}
			if text := fmt.Sprint(o.Object["subjects"]); strings.Contains(text, "drover-manager") {
				t.Errorf("%s binds %s to the manager's account, want the provisioner's", folder, o.GetName())
			}
		}
	}
}
