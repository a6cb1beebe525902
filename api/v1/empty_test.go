// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	infrastructure "github.com/drover-dev/drover/api/infrastructure/v1"
	provision "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/testkit"
)

// An object contains only the structs that its author set, so a default must not add empty ones.
func TestDefaultsAddNoEmptyObjects(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(testkit.Path(t, "config/*/bases/*.yaml"))
	if err != nil || len(files) <= len(fullSpecs) {
		t.Fatalf("find CRDs: %v, %v, want those of all groups", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(text, crd); err != nil {
			t.Fatalf("read %s: %v", file, err)
		}
		for i := range crd.Spec.Versions {
			object := map[string]any{}
			setDefaults(t, crd.Spec.Versions[i].Schema.OpenAPIV3Schema, object)
			for _, path := range emptyParts(crd.Spec.Names.Kind, object) {
				t.Errorf("the defaults of the schema add %s: {}, want no empty object", path)
			}
		}
	}
}

// refusedByRules are optional structs that may not be empty according to a CEL rule.
var refusedByRules = []string{"spec.jwt.claimMappings.groups", "spec.jwt.claimMappings.uid"}

// Server-side apply stores null where an applier empties a struct, and only atomic structs and defaults replace it. An
// empty struct that the schema refuses anyway cannot be applied.
func TestOptionalPartsOfSpecsMayBeEmptied(t *testing.T) {
	t.Parallel()
	for kind, crd := range customResources(t) {
		for i := range crd.Spec.Versions {
			spec := crd.Spec.Versions[i].Schema.OpenAPIV3Schema.Properties["spec"]
			for _, part := range partsThatStoreNull(&spec, "spec") {
				if slices.Contains(refusedByRules, part) {
					continue
				}
				t.Errorf("%s of %s is an optional struct without +structType=atomic or a default", part, kind)
			}
		}
	}
}

// partsThatStoreNull returns the paths of the optional structs and maps whose fields can have several owners, and which
// have no default.
func partsThatStoreNull(schema *apiextensionsv1.JSONSchemaProps, path string) []string {
	var found []string
	for name, property := range schema.Properties {
		atomic := property.XMapType != nil && *property.XMapType == "atomic"
		if property.Type != "object" || atomic {
			continue
		}
		mayBeEmpty := len(property.Required) == 0 && (property.MinProperties == nil || *property.MinProperties == 0)
		if mayBeEmpty && property.Default == nil && !slices.Contains(schema.Required, name) {
			found = append(found, path+"."+name)
		}
		found = append(found, partsThatStoreNull(&property, path+"."+name)...)
	}
	return found
}

// setDefaults sets defaults in an object as an API server does.
func setDefaults(t *testing.T, schema *apiextensionsv1.JSONSchemaProps, object map[string]any) {
	t.Helper()
	for name, property := range schema.Properties {
		if _, set := object[name]; !set && property.Default != nil {
			var value any
			if err := json.Unmarshal(property.Default.Raw, &value); err != nil {
				t.Fatalf("the default of %s: %v", name, err)
			}
			object[name] = value
		}
		if inner, is := object[name].(map[string]any); is {
			setDefaults(t, &property, inner)
		}
	}
}

// emptyParts returns the paths of the empty objects in a value.
func emptyParts(path string, value any) []string {
	fields, _ := value.(map[string]any)
	var found []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if inner, is := fields[name].(map[string]any); is && len(inner) == 0 {
			found = append(found, path+"."+name)
		}
		found = append(found, emptyParts(path+"."+name, fields[name])...)
	}
	return found
}

// Clusters that were created with the former default have an empty spec.authorizedEndpoint.
func TestKubectlFindsNoDifferenceInAClusterWithAFormerDefault(t *testing.T) {
	t.Parallel()
	env := testkit.Shared(t)
	namespace := env.Workspace(t)
	run := kubectl(t, env.Config)
	for way, flags := range map[string][]string{"client": nil, "server": {"--server-side"}} {
		for _, age := range []string{"new", "old"} {
			t.Run(age+"-"+way, func(t *testing.T) {
				cluster := object(t, namespace, "Cluster", "{}")
				cluster.SetName(age + "-" + way)
				manifest, err := yaml.Marshal(cluster.Object)
				if err != nil {
					t.Fatal(err)
				}
				run(manifest, append([]string{"apply", "-f", "-"}, flags...)...)
				if age == "old" {
					former := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"authorizedEndpoint":{}}}`))
					if err := env.Client.Patch(t.Context(), cluster, former); err != nil {
						t.Fatal(err)
					}
				}
				if got := run(manifest, append([]string{"diff", "-f", "-"}, flags...)...); got != "" {
					t.Errorf("kubectl diff: %s, want no difference", got)
				}
				if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(cluster), cluster); err != nil {
					t.Fatal(err)
				}
				_, found, _ := unstructured.NestedFieldNoCopy(cluster.Object, "spec", "authorizedEndpoint")
				if found != (age == "old") {
					t.Errorf("spec is %v, want authorizedEndpoint only in an old Cluster", cluster.Object["spec"])
				}
			})
		}
	}
}

// The manager and the plugin write objects that Go has encoded, so a struct that is not set must be absent.
func TestEncodedObjectsHaveNoEmptyObjects(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, infrastructure.AddToScheme, provision.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	structs := map[reflect.Type]bool{}
	for _, typ := range scheme.AllKnownTypes() {
		addStructs(typ, structs)
	}
	if !structs[reflect.TypeFor[v1.AuthorizedEndpoint]()] {
		t.Error("the test did not find AuthorizedEndpoint")
	}
	for typ := range structs {
		for _, field := range reflect.VisibleFields(typ) {
			name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
			if field.Type.Kind() == reflect.Struct && options == "omitempty" && name != "metadata" {
				t.Errorf("%s.%s is encoded as {} if it is not set, want it absent: its tag needs omitzero", typ, name)
			}
		}
	}
}

// addStructs adds Drover's structs in a type.
func addStructs(typ reflect.Type, to map[reflect.Type]bool) {
	for slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Map}, typ.Kind()) {
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct || to[typ] || !strings.Contains(typ.PkgPath(), "/drover/api/") {
		return
	}
	to[typ] = true
	for _, field := range reflect.VisibleFields(typ) {
		addStructs(field.Type, to)
	}
}
