// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// testManifests sends each object of config/ to the API server. A field that this version does not know is an error.
func testManifests(t *testing.T, h *fixture) {
	workspace := h.Workspace(t)
	for _, o := range manifests(t, "config/manager") {
		if o.GetKind() == "Service" {
			h.Apply(t, o) // an overlay changes it
		}
	}
	strict := client.WithFieldValidation(h.Client, metav1.FieldValidationStrict)
	asked := 0
	for _, folder := range []string{
		"config/crd/bases", "config/policy", "config/roles", "config/roles/templates", "config/rbac", "config/manager", "config/samples", "config/prometheus",
		"config/expose/loadbalancer", "config/expose/ingress", "config/expose/gateway", "config/clusterapi", "config/clusterapi/import", "config/provision",
	} {
		for _, o := range manifests(t, folder) {
			if !ofKubernetes(o) {
				continue
			}
			if namespaced, err := h.Client.IsObjectNamespaced(o); err != nil {
				t.Errorf("%s: this API server has no %s of %s: %v", folder, o.GetKind(), o.GetAPIVersion(), err)
				continue
			} else if namespaced && o.GetNamespace() == "" {
				o.SetNamespace(workspace) // people say it on the command line
			}
			if err := dryRun(t, strict, o); err != nil {
				t.Errorf("%s: %s %s: %v", folder, o.GetKind(), o.GetName(), err)
			}
			asked++
		}
	}
	if asked < 80 {
		t.Errorf("only %d objects were asked about", asked)
	}
}

// ofKubernetes reports whether the kind comes from Kubernetes itself or from Drover. Other files contain no object, or
// an object of an operator that users install.
func ofKubernetes(o *unstructured.Unstructured) bool {
	switch group := o.GroupVersionKind().Group; group {
	case "monitoring.coreos.com", "gateway.networking.k8s.io", "config.drover.dev":
		return false
	}
	return o.GetKind() != "" && o.GetName() != ""
}

func dryRun(t *testing.T, c client.Client, o *unstructured.Unstructured) error {
	t.Helper()
	return c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o.DeepCopy()), client.DryRunAll, client.ForceOwnership, client.FieldOwner("dry-run"))
}
