// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// TestAWorkspaceIsDeleted runs kube-controller-manager to delete a workspace, and to collect the dependents of a
// deleted object. It uses both ways in which kube-controller-manager can run: with a ServiceAccount for each
// controller, and with a single user.
func TestAWorkspaceIsDeleted(t *testing.T) {
	for _, accounts := range []bool{true, false} {
		t.Run(fmt.Sprintf("use-service-account-credentials=%t", accounts), func(t *testing.T) {
			h := startControllers(t, accounts)
			for _, o := range kept(t, h.workspace) {
				h.Apply(t, o)
			}
			owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: h.other, Name: "owner"}}
			h.Apply(t, owner)
			owned := kept(t, h.other)
			for _, o := range owned {
				if o.GetName() == "protected" {
					continue // a Cluster that is protected is so from the garbage collector, too
				}
				o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}})
				h.Apply(t, o)
			}
			wantTaken(t, h.Client.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: h.workspace}}))
			wantTaken(t, h.Client.Delete(t.Context(), owner))
			h.awaitGone(t, object(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+h.workspace+"}}"))
			for _, o := range owned {
				h.awaitGone(t, o)
			}
		})
	}
}

// kept are objects of a workspace, most of which require a separate right to delete.
func kept(t *testing.T, workspace string) []*unstructured.Unstructured {
	t.Helper()
	var all []*unstructured.Unstructured
	for _, text := range []string{
		"{kind: Cluster, metadata: {namespace: %s, name: plain}}",
		"{kind: Cluster, metadata: {namespace: %s, name: protected}, spec: {deletionProtection: true}}",
		"{kind: Project, metadata: {namespace: %s, name: web}, spec: {clusterName: plain, namespaces: [web], podSecurity: restricted}}",
		"{kind: Plan, metadata: {namespace: %s, name: k3s}, spec: {clusterName: plain, version: v1, upgrade: {image: a}}}",
		"{apiVersion: v1, kind: Secret, metadata: {namespace: %s, name: prod-provision, labels: {cluster.drover.dev/secret: provision, provision.cluster.drover.dev/installation: prod}}}",
		"{kind: ClusterRoleTemplateBinding, metadata: {namespace: %s, name: a}, spec: {clusterName: plain, roleTemplateName: cluster-viewer, subject: {kind: User, name: 'a:b'}}}",
	} {
		all = append(all, object(t, fmt.Sprintf(text, workspace)))
	}
	return all
}

// startControllers starts a hub with a controller manager. If the controller manager runs as a single user, this user
// has the rights that its controllers need, and none of Drover's own verbs.
func startControllers(t *testing.T, accounts bool) *fixture {
	t.Helper()
	plane, err := lab.Start(t.Context(), lab.Options{ControllerManager: true, Progress: os.Stderr,
		ExtraArgs: map[string][]string{lab.ControllerManager: {fmt.Sprintf("--use-service-account-credentials=%t", accounts),
			"--controllers=*,-validatingadmissionpolicy-status-controller"}}}) // it only checks types, for 0.6 s of CPU
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Stop() })
	config := plane.RESTConfig()
	c, err := client.NewWithWatch(config, client.Options{Scheme: testkit.Scheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{Paths: []string{testkit.Path(t, "config/crd/bases")}, ErrorIfPathMissing: true}); err != nil {
		t.Fatal(err)
	}
	h := newHub(t, &testkit.Env{Config: config, Client: c})
	if !accounts {
		h.allow(t, "system:kube-controller-manager", "", rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"},
			Verbs: []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}})
	}
	h.awaitPolicies(t)
	return h
}

func (h *fixture) awaitGone(t *testing.T, o *unstructured.Unstructured) {
	t.Helper()
	testkit.Eventually(t, 2*time.Minute, func(ctx context.Context) error {
		err := h.Client.Get(ctx, client.ObjectKeyFromObject(o), o)
		if err == nil {
			status, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
			return fmt.Errorf("%s %s is still there: %v", o.GetKind(), o.GetName(), status)
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("read %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		return nil
	})
}
