// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1_test

import (
	"path/filepath"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/test/testkit"
)

// TestTheReferencesShowObjectsThatTheAPIServerAccepts creates each object in docs/spec without storing it. An unknown
// field is an error.
func TestTheReferencesShowObjectsThatTheAPIServerAccepts(t *testing.T) {
	env := testkit.Shared(t)
	env.ClusterAPI(t)
	env.Provision(t)
	namespace := env.Workspace(t)
	pages, err := filepath.Glob(testkit.Path(t, "docs/spec") + "/*.md")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]bool{}
	for _, page := range pages {
		if filepath.Base(page) == "member-api.md" {
			continue // not a kind
		}
		for _, o := range shown(t, page) {
			if o.GetKind() == "" {
				continue // part of a kubeconfig
			}
			kinds[o.GetKind()] = true
			namespaced, err := env.Client.IsObjectNamespaced(o)
			if err != nil {
				t.Errorf("%s: %v", filepath.Base(page), err)
				continue
			}
			if namespaced {
				o.SetNamespace(namespace)
			}
			if err := env.Client.Create(t.Context(), o, client.DryRunAll, client.FieldValidation("Strict")); err != nil {
				t.Errorf("%s: %s %s: %v", filepath.Base(page), o.GetKind(), o.GetName(), err)
			}
		}
	}
	for _, kind := range []string{"Cluster", "Plan", "Project", "ClusterInstallation", "DroverCluster"} {
		if !kinds[kind] {
			t.Errorf("the references show no %s", kind)
		}
	}
}
