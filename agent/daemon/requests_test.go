// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/drover-dev/drover/test/testkit"
)

func TestJoinReadsAndWritesSecretsFewTimes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t)
	nextReport(t, reports(t, w.session(t)))
	// Watching the objects of sets is the last step of an agent after it has joined.
	testkit.Eventually(t, 30*time.Second, func(context.Context) error {
		if !slices.Contains(w.api.Seen(), "GET /apis/rbac.authorization.k8s.io/v1/clusterrolebindings") {
			return errors.New("the agent does not watch the objects of sets")
		}
		return nil
	})
	want := map[string]int{
		"GET " + registration: 1,
		// once before it exists, and once before the agent stores the Cluster that it has joined as
		"GET " + identity:                          2,
		"PUT " + identity:                          1,
		"POST " + secretsPath[:len(secretsPath)-1]: 1,
	}
	got := map[string]int{}
	for _, request := range w.api.Seen() {
		if _, counted := want[request]; counted {
			got[request]++
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("got requests for Secrets %v, want %v", got, want)
	}
}
