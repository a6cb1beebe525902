// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"testing"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
)

// testPrompt stops the clock, so that nothing that has to wait becomes due.
func testPrompt(t *testing.T, s *env) {
	now := time.Now()
	s.run(t, options{now: func() time.Time { return now }})
	s.nodes(t, "prompt", "prompt-a")
	s.create(t, newPlan("prompt", 0))
	s.await(t, "prompt", v1.ReasonComplete)
}
