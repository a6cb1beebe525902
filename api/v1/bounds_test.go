// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/drover-dev/drover/test/testkit"
)

// unbounded lists the fields of specs whose content the schema does not know, with what limits them instead.
var unbounded = map[string]string{
	"Baseline.spec.manifests[]":             "baseline.Parse takes 4 MiB in total, and caches do not keep the field",
	"ClusterInstallation.spec.config":       "installation.CheckConfig takes 64 KiB, by untrusted.Small",
	"ClusterInstallation.spec.serverConfig": "installation.CheckConfig takes 64 KiB, by untrusted.Small",
}

// If only etcd limits the size of a spec, a tenant can use any amount of the manager's memory, in each replica.
func TestEveryFieldOfASpecIsBounded(t *testing.T) {
	used := map[string]bool{}
	for _, folder := range []string{"config/crd/bases", "config/clusterapi/bases", "config/provision/bases"} {
		files, err := filepath.Glob(testkit.Path(t, folder) + "/*.yaml")
		if err != nil || len(files) == 0 {
			t.Fatalf("find CRDs in %s: %v, %v", folder, files, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			crd := &apiextensionsv1.CustomResourceDefinition{}
			if err := yaml.Unmarshal(text, crd); err != nil {
				t.Fatal(err)
			}
			for _, version := range crd.Spec.Versions {
				for _, lack := range lacking(crd.Spec.Names.Kind+".spec", version.Schema.OpenAPIV3Schema.Properties["spec"]) {
					if used[lack.path] = true; unbounded[lack.path] == "" {
						t.Errorf("%s has no %s, want one: run make generate, or give the field a marker", lack.path, lack.bound)
					}
				}
			}
		}
	}
	for path := range unbounded {
		if !used[path] {
			t.Errorf("%s is bounded, want no exception for it", path)
		}
	}
}

// lack is a field without a limit.
type lack struct{ path, bound string }

// lacking returns the fields of a schema that have no limit.
func lacking(path string, s apiextensionsv1.JSONSchemaProps) (found []lack) {
	add := func(bound string, missing bool) {
		if missing {
			found = append(found, lack{path, bound})
		}
	}
	if s.XPreserveUnknownFields != nil && *s.XPreserveUnknownFields {
		return []lack{{path, "schema"}}
	}
	switch {
	case s.Type == "string" || s.XIntOrString:
		add("maxLength", s.MaxLength == nil && len(s.Enum) == 0)
	case s.Type == "array":
		add("maxItems", s.MaxItems == nil)
		found = append(found, lacking(path+"[]", *s.Items.Schema)...)
	case s.Type == "object":
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			found = append(found, lacking(fmt.Sprintf("%s.%s", path, name), s.Properties[name])...)
		}
		if s.AdditionalProperties != nil {
			add("maxProperties", s.MaxProperties == nil)
			found = append(found, lacking(path+"{}", *s.AdditionalProperties.Schema)...)
		}
		add("properties", len(s.Properties) == 0 && s.AdditionalProperties == nil)
	}
	return found
}
