// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package gitops

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/drover-dev/drover/test/testkit"
)

// completeCases are objects of health_test.yaml, with their health according to a tool that waits for all members.
var completeCases = map[string]string{
	"project_healthy.yaml":                                   "Healthy",
	"project_away_healthy.yaml":                              "Progressing",
	"project_delivering_progressing.yaml":                    "Progressing",
	"project_namespace_taken_degraded.yaml":                  "Degraded",
	"clusterroletemplatebinding_healthy.yaml":                "Healthy",
	"projectroletemplatebinding_healthy.yaml":                "Healthy",
	"cluster_healthy.yaml":                                   "Healthy",
	"cluster_awaiting_agent_progressing.yaml":                "Progressing",
	"roletemplate_healthy.yaml":                              "Healthy",
	"cluster_token_expired_degraded.yaml":                    "Degraded",
	"user_password_missing_progressing.yaml":                 "Progressing",
	"authprovider_healthy.yaml":                              "Healthy",
	"projectroletemplatebinding_no_project_progressing.yaml": "Progressing",
}

// completeBlocks returns the manifests for Flux and Argo CD from that section of the guide.
func completeBlocks(t *testing.T) (flux, argo map[string]any) {
	t.Helper()
	text, err := os.ReadFile(testkit.Path(t, "docs/guide/gitops.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Wait for all members\n")
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(section, 2)
	if len(blocks) != 2 {
		t.Fatalf("the guide has %d manifests that wait for all members, want 2", len(blocks))
	}
	for i, into := range []*map[string]any{&flux, &argo} {
		if err := yaml.Unmarshal([]byte(blocks[i][1]), into); err != nil {
			t.Fatal(err)
		}
	}
	return flux, argo
}

// TestTheGuidesExpressionsWaitForAllMembers evaluates the expressions as kustomize-controller does: it first compares
// the generations, and then checks whether the object failed, or is current.
func TestTheGuidesExpressionsWaitForAllMembers(t *testing.T) {
	t.Parallel()
	flux, _ := completeBlocks(t)
	entries, _, err := unstructured.NestedSlice(flux, "spec", "healthCheckExprs")
	if err != nil || len(entries) != 1 {
		t.Fatalf("the guide has %d entries (%v), want 1", len(entries), err)
	}
	env, err := cel.NewEnv(cel.Variable("status", cel.DynType))
	if err != nil {
		t.Fatal(err)
	}
	holds := func(expression string, object *unstructured.Unstructured) bool {
		t.Helper()
		text, _ := entries[0].(map[string]any)[expression].(string)
		tree, issues := env.Compile(text)
		if issues.Err() != nil {
			t.Fatal(issues.Err())
		}
		program, err := env.Program(tree)
		if err != nil {
			t.Fatal(err)
		}
		value, _, err := program.Eval(map[string]any{"status": object.Object["status"]})
		if err != nil {
			t.Fatal(err)
		}
		return value.Value() == true
	}
	for file, want := range completeCases {
		object := readObject(t, folder(t)+"/testdata/"+file)
		got := "Progressing"
		switch {
		case holds("failed", object):
			got = "Degraded"
		case holds("current", object):
			got = "Healthy"
		}
		if got != want {
			t.Errorf("%s is %s, want %s", file, got, want)
		}
	}
}

func TestTheGuidesScriptsWaitForAllMembers(t *testing.T) {
	t.Parallel()
	_, argo := completeBlocks(t)
	scripts, _, err := unstructured.NestedStringMap(argo, "data")
	if err != nil || len(scripts) != 3 {
		t.Fatalf("the guide has %d scripts (%v), want 3", len(scripts), err)
	}
	run := 0
	for file, want := range completeCases {
		object := readObject(t, folder(t)+"/testdata/"+file)
		script, found := scripts["resource.customizations.health.cluster.drover.dev_"+object.GetKind()]
		if !found {
			continue
		}
		run++
		if got, err := runHealth(script, object); err != nil || got.Status != want {
			t.Errorf("%s is %+v (%v), want %s", file, got, err, want)
		}
	}
	if run < 6 {
		t.Errorf("only %d objects were read", run)
	}
}
