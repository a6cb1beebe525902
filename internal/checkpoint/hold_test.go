// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestHoldKeepsChangesBack(t *testing.T) {
	t.Parallel()
	lost := ""
	policy := Policy{Lost: func(context.Context, types.NamespacedName, string) string { return lost }}
	hold, member := Hold{}, types.NamespacedName{Namespace: "a", Name: "b"}
	expect := func(when string, id string, wanted, held bool) {
		t.Helper()
		if got := hold.Holds(id, wanted); got != held {
			t.Errorf("%s: set %s is held: %v, want %v", when, id, got, held)
		}
	}
	if policy.Examine(t.Context(), member, &hold, false) {
		t.Error("a member that has lost nothing has started to wait, want no change")
	}
	hold.Withdraw("crtb/early") // before the agent has reported
	expect("a member that does not wait", "crtb/x", true, false)

	lost = "lease/1/a/2"
	if !policy.Examine(t.Context(), member, &hold, true) || !hold.Waits() {
		t.Error("a member that has lost a checkpoint does not wait, want it to wait")
	}
	expect("a wanted set", "crtb/x", true, true)
	expect("a set without an owner", "crtb/y", false, true)
	expect("a withdrawn set", "crtb/early", false, false)
	expect("a withdrawn set that is wanted again", "crtb/early", true, true)
	if _, known := hold.Difference(true); known {
		t.Error("the difference is known before the comparison, want it unknown")
	}
	if !hold.Compared(&Difference{Add: []string{"crtb/x"}}) || hold.Compared(&Difference{Add: []string{"crtb/x"}}) {
		t.Error("the result of Compared is wrong, want a change by the first comparison and none by the second")
	}
	if d, known := hold.Difference(true); !known || d == nil || d.Checkpoint != lost || hold.Agrees() {
		t.Errorf("the difference is %+v, known %v, agrees %v, want one for checkpoint %s that does not agree",
			d, known, hold.Agrees(), lost)
	}
	hold.Compared(&Difference{})
	if _, known := hold.Difference(true); known || !hold.Agrees() {
		t.Errorf("an empty difference is known %v, agrees %v, want that it agrees and is not shown", known, hold.Agrees())
	}
	hold.End("lease/2/b/1")
	if hold.Waits() || hold.reached != "lease/2/b/1" {
		t.Errorf("after the end the member waits %v, with checkpoint %q, want it not to wait, with the present checkpoint",
			hold.Waits(), hold.reached)
	}
}

func TestRuleAppliesToTheKindOfTheSet(t *testing.T) {
	t.Parallel()
	policy := Policy{Rules: map[string]Rule{"direct": {RevokedAtOnce: true}}}
	for id, want := range map[string]bool{"direct": true, "direct/x": true, "directly": false, "plan/direct": false} {
		if got := policy.Rule(id).RevokedAtOnce; got != want {
			t.Errorf("%s is revoked at once: %v, want %v", id, got, want)
		}
	}
	if (&Policy{}).Checkpoint() != "" {
		t.Error("a policy without a history has a checkpoint, want none")
	}
}
