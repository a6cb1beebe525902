// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/drover-dev/drover/api/v1"
)

func TestReadinessIsWrittenInTheFormOfKstatus(t *testing.T) {
	t.Parallel()
	s := v1.HostStatus{}
	write := func(generation int64, r Readiness) {
		r.Write(generation, &s.ObservedGeneration, &s.Conditions)
	}
	write(1, Readiness{Stalled: true, Reason: "Broken", Message: strings.Repeat("x", 40_000)})
	ready, stalled := meta.FindStatusCondition(s.Conditions, v1.ConditionReady),
		meta.FindStatusCondition(s.Conditions, v1.ConditionStalled)
	if ready == nil || ready.Status != "False" || ready.Reason != "Broken" || ready.ObservedGeneration != 1 ||
		len(ready.Message) > 32768 || stalled == nil || stalled.Status != "True" || s.ObservedGeneration != 1 {
		t.Errorf("got conditions %+v of generation %d, "+
			"want Ready False and Stalled True of generation 1, with a message that the API server accepts", s.Conditions,
			s.ObservedGeneration)
	}
	write(2, Readiness{Ready: true, Reason: "Fine"})
	if ready := meta.FindStatusCondition(s.Conditions, v1.ConditionReady); ready.Status != "True" ||
		s.ObservedGeneration != 2 || ready.ObservedGeneration != 2 || len(s.Conditions) != 1 {
		t.Errorf("got conditions %+v of generation %d, want only Ready True of generation 2",
			s.Conditions, s.ObservedGeneration)
	}
}
