// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
)

func TestSafeName(t *testing.T) {
	t.Parallel()
	hash := strings.Repeat("0123456789abcdef", 4)[:56]
	tests := map[string]struct {
		words []string
		want  string
	}{
		"a short name is unchanged": {[]string{"secret", "a"}, "secret-a"},
		"a long name is cut as in system-upgrade-controller": {[]string{"apply", "k3s", "on", "n1", "with", hash},
			"apply-k3s-on-n1-with-0123456789abcdef0123456789abcdef0123-7939b"},
		"a dot is written as a dash, and stays distinct": {[]string{"secret", "a.b"}, "secret-a-b-4e23a"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := safeName(tt.words...); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestTagged(t *testing.T) {
	t.Parallel()
	for image, want := range map[string]string{
		"rancher/k3s-upgrade": "rancher/k3s-upgrade:v1", "a.example:5000/x": "a.example:5000/x:v1", "x:v0": "x:v0",
		"x@sha256:00": "x@sha256:00",
	} {
		if got := tagged(image, "v1"); got != want {
			t.Errorf("%s: got %s, want %s", image, got, want)
		}
	}
}

func TestImagesComeFromTheRegistryOfTheSettings(t *testing.T) {
	t.Parallel()
	for image, want := range map[string]string{"rancher/k3s-upgrade": "registry.example/rancher/k3s-upgrade:v1",
		"a.example/x": "a.example/x:v1"} {
		p := &v1.Plan{Spec: v1.PlanSpec{}}
		p.Spec.Upgrade.Image = image
		job := newJob(work{plan: p, version: "v1", images: "registry.example",
			job: rollout.Job{Kind: rollout.Upgrade, Node: "node-1"}})
		if got := job.Spec.Template.Spec.Containers[0].Image; got != want {
			t.Errorf("%s: got %s, want %s", image, got, want)
		}
	}
}

func TestPodIsBoundToItsNodeByName(t *testing.T) {
	t.Parallel()
	job := newJob(work{plan: &v1.Plan{}, version: "v1", host: "control-plane",
		job: rollout.Job{Kind: rollout.Upgrade, Node: "node-1"}})
	required := job.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	for _, term := range required.NodeSelectorTerms {
		if len(term.MatchFields) != 1 || term.MatchFields[0].Key != "metadata.name" ||
			term.MatchFields[0].Operator != corev1.NodeSelectorOpIn ||
			len(term.MatchFields[0].Values) != 1 || term.MatchFields[0].Values[0] != "node-1" {
			t.Errorf("got the term %+v, want the node's name: a node could label itself as another one", term)
		}
	}
}

func TestEveryVersionBecomesAValidLabel(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, version := range []string{"v1.36.3-k3s1", "v1.", "v1-", "_1", "_", "v1" + strings.Repeat("-", 80),
		"_" + strings.Repeat("1", 80), strings.Repeat("1", 128)} {
		value := labelValue(version)
		if faults := validation.IsValidLabelValue(value); len(faults) > 0 || seen[value] != "" {
			t.Errorf("got the label %s for %s, also for %q: %v, want a valid label of its own", version, value, seen[value],
				faults)
		}
		seen[value] = version
	}
}
