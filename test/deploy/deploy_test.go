// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package deploy tests "make deploy" and "make undeploy" with kubectl against a real API server.
package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// hub is an API server that hack/deploy.sh deploys to.
type hub struct {
	*testkit.Env
	kubectl string
}

// newHub starts an API server. No controllers run, so its kubectl does not wait for Deployments. It only prints that an
// object is deleted, and does not delete it, because namespaces would not disappear.
func newHub(t *testing.T) *hub {
	t.Helper()
	env := testkit.Start(t)
	assets, err := lab.Binaries(t.Context(), os.Stderr, lab.Kubectl)
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(`#!/bin/sh
case "$*" in
*"rollout status"*) exit 0 ;;
"delete --ignore-not-found -f -") cat >/dev/null; echo removed; exit 0 ;;
esac
exec %s --kubeconfig=%s "$@"
`, assets[lab.Kubectl], testkit.Kubeconfig(t, testkit.Context{Name: "hub", Env: env}))
	kubectl := filepath.Join(t.TempDir(), "kubectl")
	if err := os.WriteFile(kubectl, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return &hub{env, kubectl}
}

// run runs hack/deploy.sh and returns its output.
func (h *hub) run(t *testing.T, command string, env ...string) (string, error) {
	t.Helper()
	script := exec.CommandContext(t.Context(), "hack/deploy.sh", command)
	script.Dir = testkit.Path(t, ".")
	script.Env = append(append(os.Environ(), "KUBECTL="+h.kubectl, "PROVISION=", "FORCE=", "EXPOSE=", "SIGN_IN="), env...)
	out, err := script.CombinedOutput()
	return string(out), err
}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: corev1.NamespaceDefault, Name: name}
}

// strandable returns an object of each kind that has a finalizer which nothing removes once Drover is uninstalled.
func strandable() map[string]client.Object {
	ref := provisionv1.EtcdClusterRef{Kind: provisionv1.EtcdOfDroverCluster, Name: "c"}
	installation := &provisionv1.ClusterInstallation{ObjectMeta: meta("k3s"), Spec: provisionv1.ClusterInstallationSpec{
		ClusterName: "k3s", Distribution: provisionv1.DistributionK3s, Version: "v1.35.3+k3s1",
		Pools: []provisionv1.HostPool{{
			Name: "servers", Roles: []provisionv1.HostRole{provisionv1.RoleEtcd, provisionv1.RoleControlPlane},
		}},
	}}
	snapshot := provisionv1.EtcdSnapshotSpec{ClusterRef: ref}
	restore := provisionv1.EtcdRestoreSpec{ClusterRef: ref, SnapshotName: "s"}
	return map[string]client.Object{
		"clusterinstallations": installation,
		"drovermachines":       &infrav1.DroverMachine{ObjectMeta: meta("m")},
		"droverclusters":       &infrav1.DroverCluster{ObjectMeta: meta("c")},
		"etcdsnapshots":        &provisionv1.EtcdSnapshot{ObjectMeta: meta("s"), Spec: snapshot},
		"etcdrestores":         &provisionv1.EtcdRestore{ObjectMeta: meta("r"), Spec: restore},
		"clusters":             &v1.Cluster{ObjectMeta: meta("c")},
		"hosts":                &v1.Host{ObjectMeta: meta("h")},
	}
}

func TestLong_UndeployRefusesToStrandObjects(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.ClusterAPI(t)
	h.Provision(t)
	for kind, object := range strandable() {
		h.Apply(t, object)
		out, err := h.run(t, "undeploy")
		if err == nil || !strings.Contains(out, "there are 1 "+kind) || strings.Contains(out, "removed") {
			t.Errorf("with %s: %v, want a refusal that names them:\n%s", kind, err, out)
		}
		if err := h.Client.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	for _, object := range strandable() {
		h.Apply(t, object)
	}
	if out, err := h.run(t, "undeploy", "FORCE=1"); err != nil || strings.Count(out, "removed") != 1 {
		t.Errorf("with FORCE=1: %v, want the hub to be removed:\n%s", err, out)
	}
	for kind, object := range strandable() {
		if err := h.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object); !apierrors.IsNotFound(err) {
			t.Errorf("with FORCE=1: reading the object of %s gives %v, want NotFound", kind, err)
		}
	}

	h.provisioner(t)
	out, err := h.run(t, "undeploy")
	if err == nil || !strings.Contains(out, "set PROVISION") || strings.Contains(out, "removed") {
		t.Errorf("without PROVISION on a hub with a provisioner: %v, want a refusal:\n%s", err, out)
	}
	if out, err := h.run(t, "undeploy", "PROVISION=clusterapi"); err != nil || strings.Count(out, "removed") != 2 {
		t.Errorf("with PROVISION: %v, want provisioner and hub to be removed:\n%s", err, out)
	}
}

// provisioner creates the Deployment of a provisioner.
func (h *hub) provisioner(t *testing.T) {
	t.Helper()
	name := metav1.ObjectMeta{Namespace: "drover-system", Name: "drover-provisioner"}
	err := h.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name.Namespace}})
	if client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"app": name.Name}
	h.Apply(t, &appsv1.Deployment{ObjectMeta: name, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "p", Image: "drover"}}},
		},
	}})
}

func TestLong_DeployWithoutTheProvisionerSaysWhatItLeaves(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.Provision(t)
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "drover-manager-cluster-api"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "drover-manager-cluster-api"},
	}
	h.Apply(t, binding)
	settings := []string{"IMG=registry.test/drover:v9", "URL=https://hub.test"}
	deploy := func(env ...string) string {
		out, err := h.run(t, "deploy", append(settings, env...)...)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return out
	}

	if out := deploy(); strings.Contains(out, "warning") {
		t.Errorf("on a hub without clusters of Hosts: want no warning:\n%s", out)
	}
	err := h.Client.Get(t.Context(), client.ObjectKeyFromObject(binding), binding)
	if !apierrors.IsNotFound(err) {
		t.Errorf("the manager's former rights: %v, want NotFound", err)
	}
	h.Apply(t, strandable()["clusterinstallations"])
	if out := deploy(); !strings.Contains(out, "warning: there are 1 clusterinstallations") {
		t.Errorf("with a ClusterInstallation: want a warning that no provisioner reconciles it:\n%s", out)
	}
	if out := deploy("PROVISION=provision"); !strings.Contains(out, "does nothing in workspace default until you run") {
		t.Errorf("with PROVISION, and a workspace that does not bind it: want a warning with the command:\n%s", out)
	}
	h.Apply(t, &rbacv1.RoleBinding{
		ObjectMeta: meta("drover-provisioner"),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "drover-provisioner-workspace"},
	})
	if out := deploy("PROVISION=provision"); strings.Contains(out, "warning") {
		t.Errorf("with PROVISION and the binding: want no warning:\n%s", out)
	}
	const clusterAPI = "drover-provisioner-cluster-api"
	h.Apply(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: clusterAPI},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: clusterAPI},
	})
	for _, command := range []string{"deploy", "undeploy"} {
		out, err := h.run(t, command, append(settings, "PROVISION=provision")...)
		if err == nil || !strings.Contains(out, "serves Cluster API: set PROVISION=clusterapi") {
			t.Errorf("%s with less than is installed: %v, want a refusal:\n%s", command, err, out)
		}
	}
	if out := deploy(); !strings.Contains(out, "warning: the hub's provisioner keeps its version") {
		t.Errorf("without PROVISION on a hub with a provisioner: want a warning:\n%s", out)
	}
}

// TestLong_InstallerIsAppliedOnce applies the manifests to an API server that does not have Drover's CRDs yet.
func TestLong_InstallerIsAppliedOnce(t *testing.T) {
	h := newHub(t)
	manifests, err := h.run(t, "render", "IMG=registry.test/drover:v1", "URL=https://hub.test")
	if err != nil {
		t.Fatalf("render: %v\n%s", err, manifests)
	}
	file := filepath.Join(t.TempDir(), "install.yaml")
	if err := os.WriteFile(file, []byte(manifests), 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), h.kubectl, args...).CombinedOutput()
		return string(out), err
	}
	if out, err := kubectl("delete", "crd", "--all", "--wait", "--cache-dir", t.TempDir()); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cache := t.TempDir() // kubectl must not remember the kinds
	if out, err := kubectl("apply", "--server-side", "--cache-dir", cache, "-f", file); err != nil {
		t.Fatalf("the first apply fails: %v\n%s", err, out)
	}
	if out, err := kubectl("diff", "--server-side", "--cache-dir", cache, "-f", file); err != nil || out != "" {
		t.Errorf("kubectl diff after the first apply: %v\n%s\nwant no difference", err, out)
	}
}

func TestSignInNeedsAnAddressThatTokensCanName(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"https://Hub.test", "https://hub.test:443", "https://hub.test:443/,https://other.test"} {
		h := &hub{}
		out, err := h.run(t, "render", "IMG=registry.test/drover:v9", "URL="+url, "SIGN_IN=1")
		if err == nil || !strings.Contains(out, "SIGN_IN: the first URL") || strings.Contains(out, "kind:") {
			t.Errorf("with URL=%s: %v, want a refusal:\n%.500s", url, err, out)
		}
	}
}
