// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gitops tests how GitOps tools interpret Drover's objects.
package gitops

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/testkit"
)

// health is the health of an object for Argo CD.
type health struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

// healthCase is a test case in health_test.yaml, which has Argo CD's format.
type healthCase struct {
	InputPath    string `json:"inputPath"`
	HealthStatus health `json:"healthStatus"`

	object *unstructured.Unstructured
}

// folder is the folder of config/argocd with the script for all kinds of the group.
func folder(t *testing.T) string {
	return testkit.Path(t, "config/argocd/resource_customizations/cluster.drover.dev/_")
}

func readHealthCases(t *testing.T) []healthCase {
	t.Helper()
	var file struct {
		Tests []healthCase `json:"tests"`
	}
	read(t, filepath.Join(folder(t), "health_test.yaml"), &file)
	for i := range file.Tests {
		file.Tests[i].object = readObject(t, filepath.Join(folder(t), file.Tests[i].InputPath))
	}
	return file.Tests
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err == nil {
		err = yaml.UnmarshalStrict(raw, into)
	}
	if err != nil {
		t.Fatalf("read %s: %v", path, err)
	}
}

func readObject(t *testing.T, path string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	read(t, path, object)
	return object
}

func TestTheHealthScriptSaysWhatItsTestsExpect(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile(filepath.Join(folder(t), "health.lua"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range readHealthCases(t) {
		t.Run(tt.InputPath, func(t *testing.T) {
			got, err := runHealth(string(script), tt.object)
			if err != nil || got != tt.HealthStatus {
				t.Errorf("the script says %+v (%v), want %+v", got, err, tt.HealthStatus)
			}
		})
	}
}

// TestEachKindHasTestsOfItsHealth checks that no kind lacks a test, because an untested kind may have conditions of
// other names.
func TestEachKindHasTestsOfItsHealth(t *testing.T) {
	t.Parallel()
	tested := map[string]bool{}
	used := map[string]bool{}
	for _, tt := range readHealthCases(t) {
		tested[tt.object.GetKind()+" "+tt.HealthStatus.Status] = true
		used[filepath.Base(tt.InputPath)] = true
	}
	for _, file := range crds(t, "config/crd/bases", "config/provision/bases") {
		kind, _, _ := unstructured.NestedString(readObject(t, file).Object, "spec", "names", "kind")
		for _, status := range []string{"Healthy", "Degraded"} {
			if !tested[kind+" "+status] {
				t.Errorf("no test of the health script has a %s that is %s", kind, status)
			}
		}
	}
	inputs, err := os.ReadDir(filepath.Join(folder(t), "testdata"))
	if err != nil {
		t.Fatal(err)
	}
	for _, input := range inputs {
		if !used[input.Name()] {
			t.Errorf("health_test.yaml does not use testdata/%s", input.Name())
		}
	}
}

// crds returns the files with the CRDs in folders.
func crds(t *testing.T, folders ...string) (all []string) {
	t.Helper()
	for _, folder := range folders {
		files, err := filepath.Glob(filepath.Join(testkit.Path(t, folder), "*.yaml"))
		if err != nil || len(files) == 0 {
			t.Fatalf("find the CRDs of %s: %v, %v", folder, files, err)
		}
		all = append(all, files...)
	}
	return all
}

// TestStatusOfEachKindHasObservedGeneration checks this because otherwise kstatus and the health script would take a
// status from before a change for a status from after it.
func TestStatusOfEachKindHasObservedGeneration(t *testing.T) {
	t.Parallel()
	for _, file := range crds(t, "config/crd/bases", "config/provision/bases", "config/clusterapi/bases") {
		crd := readObject(t, file)
		versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
		if err != nil || len(versions) != 1 {
			t.Fatalf("%s: %d versions (%v)", file, len(versions), err)
		}
		schema := []string{"schema", "openAPIV3Schema", "properties", "status", "properties"}
		status, found, err := unstructured.NestedMap(versions[0].(map[string]any), schema...)
		if err != nil {
			t.Fatal(err)
		}
		if found && status["conditions"] != nil && status["observedGeneration"] == nil {
			t.Errorf("%s: the status has conditions and no observedGeneration", filepath.Base(file))
		}
	}
}

// TestTheSamplesOfHealthAreObjectsOfTheirKinds checks that the samples have only fields of their kinds, because other
// fields would prove nothing.
func TestTheSamplesOfHealthAreObjectsOfTheirKinds(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, provisionv1.AddToScheme, infrav1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range readHealthCases(t) {
		object, err := scheme.New(tt.object.GroupVersionKind())
		if err != nil {
			t.Fatal(err)
		}
		read(t, filepath.Join(folder(t), tt.InputPath), object)
	}
}

// TestTheConfigMapHasTheHealthScript checks this because Argo CD reads wildcards in argocd-cm only under this key.
func TestTheConfigMapHasTheHealthScript(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile(filepath.Join(folder(t), "health.lua"))
	if err != nil {
		t.Fatal(err)
	}
	patch, _, err := unstructured.NestedStringMap(readObject(t, testkit.Path(t, "config/argocd/argocd-cm.yaml")).Object, "data")
	if err != nil {
		t.Fatal(err)
	}
	var customizations map[string]map[string]string
	if err := yaml.UnmarshalStrict([]byte(patch["resource.customizations"]), &customizations); err != nil {
		t.Fatal(err)
	}
	for _, kinds := range []string{"cluster.drover.dev/*", "provision.cluster.drover.dev/*", "infrastructure.cluster.drover.dev/DroverCluster"} {
		if got := customizations[kinds]["health.lua"]; got != string(script) {
			t.Errorf("config/argocd/argocd-cm.yaml has another script for %s than resource_customizations/cluster.drover.dev/_/health.lua:\n%s", kinds, got)
		}
	}
}

// runHealth runs a script as Argo CD does: with only the libraries base, package and table, and with the object as the
// global obj.
func runHealth(script string, object *unstructured.Unstructured) (health, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{lua.LoadLibName: lua.OpenPackage, lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable} {
		if err := state.CallByParam(lua.P{Fn: state.NewFunction(open), Protect: true}, lua.LString(name)); err != nil {
			return health{}, err
		}
	}
	state.SetGlobal("obj", luaValue(state, object.Object))
	if err := state.DoString(script); err != nil {
		return health{}, err
	}
	table, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return health{}, fmt.Errorf("the script returns a %s", state.Get(-1).Type())
	}
	got := health{Status: lua.LVAsString(table.RawGetString("status")), Message: lua.LVAsString(table.RawGetString("message"))}
	if !strings.Contains("Healthy Progressing Degraded Suspended Missing Unknown", got.Status) || got.Status == "" {
		return got, errors.New("the script returns a health that Argo CD does not know")
	}
	return got, nil
}

// luaValue converts a JSON value to Lua.
func luaValue(state *lua.LState, value any) lua.LValue {
	switch v := value.(type) {
	case map[string]any:
		table := state.NewTable()
		for key, item := range v {
			table.RawSetString(key, luaValue(state, item))
		}
		return table
	case []any:
		table := state.NewTable()
		for _, item := range v {
			table.Append(luaValue(state, item))
		}
		return table
	case string:
		return lua.LString(v)
	case bool:
		return lua.LBool(v)
	case int64:
		return lua.LNumber(v)
	case float64:
		return lua.LNumber(v)
	}
	return lua.LNil
}
