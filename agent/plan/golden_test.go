// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
)

var update = flag.Bool("update", false, "write what is into the golden files")

const golden = "testdata/golden"

// difference is a difference between our Jobs and the Jobs of system-upgrade-controller, with its reason.
type difference struct{ at, why string }

// differences are the known differences. Their keys are patterns for the paths that flatten returns.
var differences = []difference{
	{`^metadata/(name|ownerReferences)`, "a plan that is deleted ends its Jobs; the name of prepare's Job says so"},
	{`^(spec/template/)?metadata/labels/upgrade.cattle.io/controller$`,
		"two controllers in one member must not take each other's Jobs"},
	{`^(spec/template/)?metadata/labels/(app.kubernetes.io/managed-by|cluster.drover.dev/)`,
		"they distinguish attempts, and prepare from upgrade"},
	{`^metadata/annotations/cluster.drover.dev/node$`, "a node's name can be longer than a label"},
	{`^(spec/template/)?metadata/(labels/team|annotations/example.org/ticket)$`,
		"labels and annotations of a Plan are not those of its pods: a set puts its own on it"},
	{`^(metadata/annotations/upgrade.cattle.io/ttl-seconds-after-finished|spec/ttlSecondsAfterFinished)$`,
		"a Job that ended while no agent ran must be seen; agents delete them"},
	{`^spec/(backoffLimit|podFailurePolicy/.*)$`,
		"attempts are the plan's, which uncordons and drains again between them; an eviction costs none"},
	{`^spec/podReplacementPolicy$`,
		"a pod whose node may still run it is not replaced: with a podFailurePolicy it can only be Failed, which is then " +
			"the default"},
	{`^spec/template/spec/affinity/nodeAffinity/`, "a kubelet may give its node any hostname, but not another name"},
	{`^spec/template/spec/initContainers/`,
		"prepare has a Job of its own, and the agent cordons and drains between the two"},
	{`^spec/template/spec/volumes/pod-info/downwardAPI/(defaultMode|items/(labels|annotations)/fieldRef/apiVersion)$`,
		"what the API server sets where nothing is said"},
}

// prepared are the differences between the Job of prepare and the init container prepare, which is in the same pod in
// system-upgrade-controller.
var prepared = append([]difference{
	{`^spec/template/spec/(containers|volumes/var)/`, "there the pod is that of the upgrade too, with its volumes"},
}, differences...)

func TestJobsEqualThoseOfSystemUpgradeControllerExceptKnownDifferences(t *testing.T) {
	t.Parallel()
	o := &v1.Plan{}
	theirs := read(t, "theirs.yaml", nil)
	read(t, "plan.yaml", o)
	for kind, known := range map[rollout.JobKind][]difference{rollout.Upgrade: differences, rollout.Prepare: prepared} {
		t.Run(string(kind), func(t *testing.T) {
			job := rollout.Job{Kind: kind, Plan: o.Name, Node: "node-1",
				Hash: "0123456789abcdef0123456789abcdef0123456789abcdef01234567", Attempt: 1}
			raw, err := yaml.Marshal(newJob(work{plan: o, version: rollout.Version(o.Spec.Version), host: "node-1", job: job}))
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(golden, string(kind)+".yaml")
			if *update {
				if err := os.WriteFile(path, raw, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if want, err := os.ReadFile(path); err != nil || !bytes.Equal(raw, want) {
				t.Errorf("%s differs from the Job that is made (%v), want the same; write it with -update:\n%s", path, err, raw)
			}
			expectDifferences(t, known, flatten(t, raw), theirs)
		})
	}
	t.Run("the container prepare is the same", func(t *testing.T) {
		part := func(all map[string]string, of string) map[string]string {
			found := map[string]string{}
			for path, value := range all {
				if rest, is := strings.CutPrefix(path, of); is {
					found[rest] = value
				}
			}
			return found
		}
		ours := part(read(t, string(rollout.Prepare)+".yaml", nil), "spec/template/spec/containers/prepare/")
		expectDifferences(t, nil, ours, part(theirs, "spec/template/spec/initContainers/prepare/"))
	})
}

// expectDifferences fails the test for an unknown difference, and for a known difference that no longer exists.
func expectDifferences(t *testing.T, known []difference, ours, theirs map[string]string) {
	t.Helper()
	met := make([]bool, len(known))
	paths := map[string]bool{}
	for path := range ours {
		paths[path] = true
	}
	for path := range theirs {
		paths[path] = true
	}
	for path := range paths {
		if ours[path] == theirs[path] {
			continue
		}
		named := false
		for i, d := range known {
			if regexp.MustCompile(d.at).MatchString(path) {
				named, met[i] = true, true
			}
		}
		if !named {
			t.Errorf("%s: got %q, want %q as in system-upgrade-controller", path, ours[path], theirs[path])
		}
	}
	for i, d := range known {
		if !met[i] {
			t.Errorf("nothing differs at %s any longer, want the difference (%s)", d.at, d.why)
		}
	}
}

// read reads a golden file as a flat map and, if into is not nil, into an object.
func read(t *testing.T, name string, into any) map[string]string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(golden, name))
	if err != nil {
		t.Fatal(err)
	}
	if into != nil {
		if err := yaml.UnmarshalStrict(raw, into); err != nil {
			t.Fatal(err)
		}
	}
	return flatten(t, raw)
}

// flatten returns each value of an object by its path. The path of an element of a list has the element's name, if it
// has one.
func flatten(t *testing.T, raw []byte) map[string]string {
	t.Helper()
	var object any
	if err := yaml.Unmarshal(raw, &object); err != nil {
		t.Fatal(err)
	}
	flat := map[string]string{}
	var walk func(path string, value any)
	walk = func(path string, value any) {
		switch value := value.(type) {
		case map[string]any:
			for key, inner := range value {
				walk(path+"/"+key, inner)
			}
		case []any:
			for i, inner := range value {
				walk(path+"/"+nameOf(inner, i), inner)
			}
		default:
			text, err := json.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			flat[strings.TrimPrefix(path, "/")] = string(text)
		}
	}
	walk("", object)
	return flat
}

func nameOf(element any, index int) string {
	if object, is := element.(map[string]any); is {
		for _, key := range []string{"name", "path"} {
			if name, is := object[key].(string); is {
				return name
			}
		}
	}
	return fmt.Sprint(index)
}
