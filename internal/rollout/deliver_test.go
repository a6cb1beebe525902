// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout_test

import (
	"strings"
	"testing"

	"github.com/drover-dev/drover/internal/rollout"
)

func TestCopiesOfSecretsHaveDifferentNamesForDifferentPlans(t *testing.T) {
	seen := map[string]string{}
	for _, plan := range []string{"a", "a.b", "a.b.c", strings.Repeat("p", 63)} {
		for _, secret := range []string{"d", "c", "b.c", "b.c.d", "c.d", strings.Repeat("s", 253),
			strings.Repeat("s", 252) + "t"} {
			name := rollout.SecretName(plan, secret)
			if what := plan + "/" + secret; seen[name] != "" || len(name) > 253 {
				t.Errorf("%s and %s both have the name %s, want different names", what, seen[name], name)
			} else {
				seen[name] = what
			}
		}
	}
	if got := rollout.SecretName("k3s", "patch"); got != "k3s.patch" {
		t.Errorf("the plain case is %s", got)
	}
}
