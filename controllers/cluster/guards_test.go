// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/test/testkit"
)

// expectEventOnce checks that exactly one event since its last call begins with a text.
func (w *world) expectEventOnce(want string) {
	w.t.Helper()
	all := slices.Collect(drain(w.recorder))
	if n := len(slices.DeleteFunc(slices.Clone(all), func(e string) bool { return !strings.HasPrefix(e, want+" ") })); n != 1 {
		w.t.Errorf("%q was recorded %d times: %q", want, n, all)
	}
}

func TestGuards(t *testing.T) {
	w := newWorld(t, testkit.Shared(t))
	guards := delivery.Outcome{Stage: delivery.Pending}
	w.r.Guards = func(name types.NamespacedName) delivery.Outcome {
		if name != w.name {
			t.Errorf("asked of %s", name)
		}
		return guards
	}
	w.joined()
	_ = slices.Collect(drain(w.recorder))
	conflict := delivery.Outcome{Stage: delivery.Failed, Reason: v1.ReasonConflict,
		Failures: []v1.Failure{{Object: "ValidatingAdmissionPolicy drover-guard", Message: "it already exists and is not Drover's"}}}
	for _, tt := range []struct {
		name    string
		outcome delivery.Outcome
		want    string // status and reason, empty for no condition
		told    []string
	}{
		{"on its way", delivery.Outcome{Stage: delivery.Pending}, "", nil},
		{"there", delivery.Outcome{Stage: delivery.Applied}, "True GuardsApplied", nil},
		{"in conflict", conflict, "False Conflict", []string{"Warning Conflict"}},
		{"away: as it was", delivery.Outcome{Stage: delivery.Away}, "False Conflict", nil},
		{"there again", delivery.Outcome{Stage: delivery.Applied}, "True GuardsApplied", []string{"Normal GuardsApplied"}},
		{"fought over", delivery.Outcome{Stage: delivery.Failed, Reason: v1.ReasonFighting}, "False Fighting", []string{"Warning Fighting"}},
		{"an agent that takes nothing has none", delivery.Outcome{Stage: delivery.Refused, Reason: v1.ReasonAgentReadOnly}, "", nil},
		{"an old agent", delivery.Outcome{Stage: delivery.Refused, Reason: v1.ReasonAgentTooOld}, "False AgentTooOld", []string{"Warning AgentTooOld"}},
	} {
		guards = tt.outcome
		w.reconcile()
		got := ""
		if c := meta.FindStatusCondition(w.cluster().Status.Conditions, v1.ConditionGuardsApplied); c != nil {
			got = string(c.Status) + " " + c.Reason
			if c.Reason == v1.ReasonConflict && !strings.Contains(c.Message, "drover-guard: it already exists") {
				t.Errorf("%s: %s, want the object that is in the way", tt.name, c.Message)
			}
		}
		var told []string
		for event := range drain(w.recorder) {
			told = append(told, strings.Join(strings.SplitN(event, " ", 3)[:2], " "))
		}
		if got != tt.want || !slices.Equal(told, tt.told) {
			t.Errorf("%s: %q, want %q; events %q, want %q", tt.name, got, tt.want, told, tt.told)
		}
	}
}
