// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plans

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

// stepLine is a line of a preview with whole seconds.
var stepLine = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ  \+(\d+h)?(\d+m)?\d+s +member `)

func TestAPreviewConcernsThePlansClustersInWholeSeconds(t *testing.T) {
	s := sharedFixture(t)
	for name, env := range map[string]string{"member": "test", "prod-eu": "prod"} {
		s.Apply(t, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.workspace, Name: name,
			Labels: map[string]string{"env": env}}})
	}
	for name, target := range map[string]string{
		"by name": "clusterName: member", "by labels": "clusterSelector: {matchLabels: {env: test}}"} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "plan.yaml")
			text := "kind: Plan\nmetadata: {name: try}\nspec: {" + target + ", version: v1, " +
				"channel: 'https://example.com/stable', window: {startTime: '02:00', endTime: '02:30'}, upgrade: {image: x}}\n"
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			code, out := s.run(t.Context(), "plan", "preview", file)
			if code != cli.ExitAllowed || strings.Contains(out, "prod-eu") ||
				!strings.Contains(out, "# the hub does not know the nodes of member:") ||
				!strings.Contains(out, "# the plan has both a version and a channel: it uses the version") {
				t.Errorf("exit code %d: %s, want remarks about member only, and about the channel", code, out)
			}
			steps := 0
			for line := range strings.Lines(out) {
				if strings.Contains(line, "Z  +") {
					if steps++; !stepLine.MatchString(line) {
						t.Errorf("the step %q is not at a whole second", line)
					}
				}
			}
			if steps == 0 {
				t.Errorf("there are no steps: %s", out)
			}
		})
	}
}

func TestAScenarioIsPreviewedWithoutAHub(t *testing.T) {
	s := &fixture{kubeconfig: filepath.Join(t.TempDir(), "missing")}
	code, out := s.run(t.Context(), "plan", "preview", "testdata/scenario.yaml")
	if code != cli.ExitAllowed {
		t.Errorf("got exit code %d, want %d", code, cli.ExitAllowed)
	}
	for _, want := range []string{
		"2026-11-28T01:00:00Z  +5h0m0s     canary                      begin", // 02:00 in Berlin, a Saturday
		"c-2            retry     attempt 2",
		"2026-11-28T02:15:30Z  +6h15m30s   east                        begin", // the canary was complete at 01:15:30
		"Complete: 4 clusters complete",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("there is no %q in\n%s", want, out)
		}
	}
}

func TestAPlanThatCannotBeReadNamesNoGoTypes(t *testing.T) {
	for text, want := range map[string]string{
		"garbage":                                    "the document is text, but must be an object",
		"- a":                                        "the document is a list, but must be an object",
		"kind: List\nitems: [3]":                     "the document is a number, but must be an object",
		"kind: 3":                                    "kind is a number, but must be text",
		"kind: Plan\nspec: 3":                        "spec is a number, but must be an object",
		"kind: Plan\nspec: {foo: }":                  `unknown field "foo"`,
		"kind: Plan\nspec: {concurrency: [1]}":       "spec.concurrency is a list, but must be a whole number",
		"kind: Plan\nspec: {concurrency: 1.5}":       "spec.concurrency is a number 1.5, but must be a whole number",
		"kind: Plan\nspec: {paused: later}":          "spec.paused is text, but must be true or false",
		"kind: Plan\nspec: {tolerations: x}":         "spec.tolerations is text, but must be a list",
		"kind: Plan\nspec: {drain: {timeout: soon}}": `invalid duration "soon": use a duration such as 90s, 10m or 8h`,
		"kind: Plan\nspec: {postCompleteDelay: 5}":   "spec.postCompleteDelay is a number",
		"plan: {spec: {upgrade: {image: [x]}}}":      "plan.spec.upgrade.image is a list, but must be text",
		"a: b: c":                                    "mapping values are not allowed",
	} {
		_, err := readPreviews(fromInput, strings.NewReader(text))
		if err == nil || !strings.HasPrefix(err.Error(), "read -, document 1: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
			continue
		}
		for _, word := range []string{"struct", "v1.", "json", "Go ", "time:"} {
			if strings.Contains(err.Error(), word) {
				t.Errorf("%q: %v contains %q", text, err, word)
			}
		}
	}
}
