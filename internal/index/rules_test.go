// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package index_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/drover-dev/drover/internal/index"
)

func TestLongRulesAreReplacedByADigestThatNoUserCanForge(t *testing.T) {
	rules := func(names int, last string) []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{{Verbs: []string{"get"},
			ResourceNames: append(slices.Repeat([]string{strings.Repeat("n", 40)}, names), last)}}
	}
	for _, names := range []int{1, 10_000} {
		kept := index.OutlineRules(rules(names, "a"))
		if !index.SameRules(kept, rules(names, "a")) || index.SameRules(kept, rules(names, "b")) ||
			index.SameRules(kept, rules(names+1, "a")) {
			t.Errorf("with %d names: the rules are not distinguished from others", names)
		}
		if !reflect.DeepEqual(index.OutlineRules(kept), kept) {
			t.Errorf("with %d names: a second outline differs from the first, want the same", names)
		}
	}
	long := rules(10_000, "a")
	if kept := index.OutlineRules(long); len(kept) != 1 || len(kept[0].ResourceNames) != 1 ||
		len(kept[0].ResourceNames[0]) > 100 {
		t.Errorf("got %.200v, want a digest", kept)
	}
	for name, forged := range map[string][]string{"a digest": {strings.Repeat("a", 64)},
		"much text": {strings.Repeat("a", 1<<20)}, "many names": slices.Repeat([]string{"a"}, 1000)} {
		kept := index.OutlineRules([]rbacv1.PolicyRule{{APIGroups: []string{"outline.cluster.drover.dev"},
			ResourceNames: forged, Resources: forged}})
		if index.SameRules(kept, long) || len(kept) != 1 || len(kept[0].ResourceNames) > 1 || len(kept[0].Resources) > 0 {
			t.Errorf("%s: a rule that looks like an outline became %.200v, want it to differ from all rules",
				name, kept)
		}
	}
}
